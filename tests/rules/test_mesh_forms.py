"""Which mesh `fully_shard` is given, or none (FSDP404, FSDP415), form by form."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, marked, named

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, parallelize_module

from elsewhere import config

dist.init_process_group("gloo")
world = dist.get_world_size()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x):
        x = self.words(x)
        for block in self.blocks:
            x = block(x)
        return x


model = Net()
"""

FORMS = {
    "no mesh beside tensor parallelism": """
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))

        def split(net, part):
            for block in net.blocks:
                parallelize_module(block, part, ColwiseParallel())

        def shard(net, **options):
            for block in net.blocks:
                fully_shard(block, **options)  # expect: FSDP404
            fully_shard(net, **options)

        split(model, mesh["tp"])
        shard(model)
        """,
    "the slice for data": """
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], ColwiseParallel())
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        """,
    "a plan that splits nothing": """
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], PrepareModuleInput())
            fully_shard(block)
        fully_shard(model)
        """,
    "another model": """
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        other = Net()
        for block in other.blocks:
            parallelize_module(block, mesh["tp"], ColwiseParallel())
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        """,
    "one or the other": """
        if config.tp > 1:
            mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
            for block in model.blocks:
                parallelize_module(block, mesh["tp"], ColwiseParallel())
        else:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        """,
    "a name that the mesh does not have": """
        class Parallel:
            def __init__(self):
                self.mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))

            @property
            def data(self):
                return self.mesh["fsdp"]

        parallel = Parallel()
        for block in model.blocks:
            fully_shard(block, mesh=parallel.data)  # expect: FSDP415
        fully_shard(model, mesh=parallel.data)
        """,
    "a name for each kind of mesh": """
        if config.replicas > 1:
            shape, names = (config.replicas, world // config.replicas), ("replicate", "shard")
        else:
            shape, names = (world,), ("dp",)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        mesh = mesh["replicate", "shard"] if config.replicas > 1 else mesh["dp"]
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        """,
    "names in a list": """
        shape, names = [], []
        for size, name in ((config.pp, "pp"), (config.dp, "dp")):
            if size > 1:
                shape.append(size)
                names.append(name)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        """,
    "a dimension that is made of two": """
        mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        mesh["dp", "cp"]._flatten(mesh_dim_name="dp_cp")
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp_cp"])
        fully_shard(model, mesh=mesh["dp_cp"])
        """,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_mesh_is_that_of_the_data(form: str) -> None:
    source = Source("train.py", HEAD + dedent(FORMS[form]))
    assert named(list(findings([source]))) == marked([source], "expect")
