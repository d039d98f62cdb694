"""The names of a mesh say (shard, replicate), and `fully_shard` does it the other way round.

## What it does

Finds meshes of two dimensions for `fully_shard` whose first is named for sharding and whose second is named for
replicating.

## Why is this bad

`fully_shard` replicates over the first dimension and shards over the second; it never looks at the names. A
mesh of (8 shards, 2 replicas) becomes 8 replicas of 2 shards: each rank holds four times what was planned,
and the gathers cross the hosts that they were to stay within. FSDP1 took its process groups in the order
(shard, replicate), so this comes with migrated scripts.

## Example

```python
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (8, 2), mesh_dim_names=("shard", "replicate"))
model = nn.Linear(8, 8)
fully_shard(model, mesh=mesh)
```

## Use instead

```python
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 8), mesh_dim_names=("replicate", "shard"))
model = nn.Linear(8, 8)
fully_shard(model, mesh=mesh)
```

## Fix safety

Unsafe: ranks change their places in the mesh, which other code (the data loader) may know by number.

## Known limits

Only names that hold `shard` or `fsdp` first and `replicate` second are understood.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`mesh`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_get_mesh_info`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Fix, Mesh, Replace, Sharded, Trace, rule

from ._meshes import given_meshes, made, written


@rule(code="FSDP403", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Meshes whose names are in the other order, each where it is used first."""
    told: set[Mesh] = set()
    for sharded in trace.of(Sharded):
        for mesh in given_meshes(sharded):
            if isinstance(mesh, Mesh) and mesh not in told and _swapped(mesh.names or ()):
                told.add(mesh)
                first, second = mesh.names or ("", "")
                called = made(trace, mesh)
                yield Finding(
                    at=sharded,
                    message=f"`fully_shard` replicates over `{first}` and shards over `{second}`: the first "
                    "dimension of a mesh is the one to replicate over, whatever its name",
                    because=() if called is None else ((called, "the mesh is made here"),),
                    fix=_in_order(trace, mesh),
                )
                break


def _swapped(names: tuple[str, ...]) -> bool:
    if len(names) != 2:
        return False
    first, second = names
    shards = "shard" in first or "fsdp" in first
    return shards and "replicate" not in first and "replicate" in second and "shard" not in second


def _in_order(trace: Trace, mesh: Mesh) -> Fix | None:
    """The dimensions and their names the other way round, where both are written in the call."""
    called = made(trace, mesh)
    if called is None:
        return None
    edits = []
    for position, keyword in ((1, "mesh_shape"), (2, "mesh_dim_names")):
        display = written(called, position, keyword)
        if display is None or len(display.elements) != 2:
            return None
        source = called.at.source
        first, second = (element.value for element in display.elements)
        edits += [
            Replace(source, first, source.code(second)),
            Replace(source, second, source.code(first)),
        ]
    return Fix("replicate over the first dimension", tuple(edits), "unsafe", "ranks change places")
