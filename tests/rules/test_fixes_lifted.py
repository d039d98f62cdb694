"""What belongs above the sharding moves there with what it needs, and only where nothing between cares."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, mended

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing, checkpoint_wrapper
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.tower = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.tower(x))

def shard(model):
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model

def split(module, mesh):
    return parallelize_module(module, mesh["tp"], ColwiseParallel())

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
net = Net()
"""
TAIL = "net(torch.randn(4, 8)).sum().backward()\n"
BLOCKS = 'for block in net.blocks:\n    fully_shard(block, mesh=mesh["dp"])\n'
ROOT = 'fully_shard(net, mesh=mesh["dp"])\n'
SHARD = BLOCKS + ROOT
SHARD_B = 'fully_shard(b, mesh=mesh["dp"])\n'
OF_B = 'parallelize_module(b, mesh["tp"], plan)\n'
SPLIT = 'parallelize_module(net.head, mesh["tp"], plan)\n'
PLAN = "plan = ColwiseParallel()\n"


def changed(body: str, code: str) -> tuple[str, bool]:
    """The body after the fixes of a rule, and whether the rule still speaks."""
    name = {rule.code: rule.name for rule in knowledge.rules()}[code]
    source = Source("train.py", HEAD + body + TAIL)
    before = list(findings([source], name))
    said = [(rule, one) for rule, one in before if rule.code == code]
    assert said, "the rule must speak"
    (after,) = mended([source], said)
    left = {rule.code for rule, _ in findings([after], name)}
    assert left <= {rule.code for rule, _ in before}, "a fix brings another finding"
    return after.text.removeprefix(HEAD).removesuffix(TAIL), code in left


ALL = SPLIT.replace("net.head", "net")
LIFTED = {
    "with its settings": (
        SHARD + "# how\n" + PLAN + "lr = 0.1\n" + ALL,
        "# how\n" + PLAN + ALL + SHARD + "lr = 0.1\n",
    ),
    "above what shards it": (
        BLOCKS + ROOT + PLAN + SPLIT,
        BLOCKS + PLAN + SPLIT + ROOT,
    ),
    "within a condition": (
        PLAN + "if mesh.ndim > 1:\n    shard(net)\n    " + SPLIT,
        PLAN + "if mesh.ndim > 1:\n    " + SPLIT + "    shard(net)\n",
    ),
    "above a condition": (
        "if mesh.ndim > 1:\n    shard(net)\n" + PLAN + SPLIT,
        PLAN + SPLIT + "if mesh.ndim > 1:\n    shard(net)\n",
    ),
    "above a helper that gives the model back": (
        "net = shard(net)\n" + PLAN + SPLIT,
        PLAN + SPLIT + "net = shard(net)\n",
    ),
    "a helper that gives the model back": (
        SHARD + "net = split(net, mesh)\n",
        "net = split(net, mesh)\n" + SHARD,
    ),
    "past an optimizer": (
        SHARD + "adam = torch.optim.Adam(net.parameters())\n" + PLAN + ALL,
        PLAN + ALL + SHARD + "adam = torch.optim.Adam(net.parameters())\n",
    ),
    "within a round of a loop": (
        PLAN + f"for b in net.blocks:\n    {SHARD_B}    {OF_B}" + ROOT,
        PLAN + f"for b in net.blocks:\n    {OF_B}    {SHARD_B}" + ROOT,
    ),
}
STAYING = {
    "the sharding binds what it reads": SHARD
    + 'parallelize_module(block, mesh["tp"], ColwiseParallel())\n',
    "the model has another name then": "other = shard(net)\n"
    + PLAN
    + SPLIT.replace("net", "other"),
    "the meshes have nothing in common": "fully_shard(net)\n" + PLAN + SPLIT,
    "the model computes between": SHARD + "net(torch.randn(4, 8))\n" + PLAN + SPLIT,
    "the model is loaded between": SHARD + "net.load_state_dict(torch.load('a'))\n" + PLAN + SPLIT,
    "code that cannot be seen has it between": SHARD
    + "import tool\ntool.use(net)\n"
    + PLAN
    + SPLIT,
    "a list grows between": SHARD
    + "plan = []\nplan.append(ColwiseParallel())\n"
    + SPLIT.replace("plan", "ColwiseParallel() if plan else None"),
    "the loop may be left between": "for _ in range(1):\n    shard(net)\n    if mesh.ndim < 2:\n"
    "        break\n    " + SPLIT.replace("plan", "ColwiseParallel()"),
    "it asks for what is sharded": SHARD
    + 'if isinstance(net, FSDPModule):\n    parallelize_module(net.head, mesh["tp"], ColwiseParallel())\n',
    "it takes parameters": SHARD
    + f"names = list(net.named_parameters())\nif names:\n    {SPLIT}".replace(
        "plan", "ColwiseParallel()"
    ),
    "it is done in another function": "def after(model):\n    "
    + SPLIT.replace("net", "model").replace("plan", "ColwiseParallel()")
    + "\ndef before(model):\n    shard(model)\n    return lambda: after(model)\n\nbefore(net)()\n",
}


@pytest.mark.parametrize(("before", "after"), LIFTED.values(), ids=LIFTED)
def test_tensor_parallelism_moves_above_the_sharding(before: str, after: str) -> None:
    assert changed(before, "FSDP227") == (after, False)


@pytest.mark.parametrize("body", STAYING.values(), ids=STAYING)
def test_tensor_parallelism_stays_where_it_needs_something(body: str) -> None:
    assert changed(body, "FSDP227") == (body, True)


TOWER = "for layer in net.tower:\n    fully_shard(layer)\nfully_shard(net.tower)\n"
WRAPPED_FIRST = {
    "each block of a loop": (
        "for i, b in enumerate(net.blocks):\n    fully_shard(b)\n"
        "    net.blocks[i] = checkpoint_wrapper(b)\n" + ROOT,
        "for i, b in enumerate(net.blocks):\n    net.blocks[i] = checkpoint_wrapper(b)\n"
        "    fully_shard(net.blocks[i])\n" + ROOT,
    ),
    "a block with a name": (
        "last = net.head\nfully_shard(last)\nnet.head = checkpoint_wrapper(last)\n" + ROOT,
        "last = net.head\nnet.head = checkpoint_wrapper(last)\nfully_shard(net.head)\n" + ROOT,
    ),
    "a name that goes on": (
        "for name, b in net.blocks.named_children():\n    fully_shard(b)\n"
        "    b = checkpoint_wrapper(b)\n    net.blocks.register_module(name, b)\n" + ROOT,
        "for name, b in net.blocks.named_children():\n    b = checkpoint_wrapper(b)\n"
        "    fully_shard(b)\n    net.blocks.register_module(name, b)\n" + ROOT,
    ),
    "all that a module holds": (
        TOWER + ROOT + "apply_activation_checkpointing(net.tower)\n",
        "apply_activation_checkpointing(net.tower)\n" + TOWER + ROOT,
    ),
    "in place": (
        SHARD + "for b in net.blocks:\n    b.compile()\n",
        "for b in net.blocks:\n    b.compile()\n" + SHARD,
    ),
}
SHARDED_STILL = {
    "by its class": "for b in net.blocks:\n    if isinstance(b, nn.Linear):\n        fully_shard(b)\n"
    "fully_shard(net)\nnet.blocks[0] = torch.compile(net.blocks[0])\n",
    "by its class, in a module that holds it": TOWER.replace(
        "    fully_shard(l", "    if isinstance(layer, nn.Linear):\n        fully_shard(l"
    )
    + "fully_shard(net)\napply_activation_checkpointing(net.tower)\n",
    "out of a list": "found = list(net.blocks)\nfor b in found:\n    fully_shard(b)\nfully_shard(net)\n"
    "for i in range(2):\n    net.blocks[i] = torch.compile(net.blocks[i])\n",
    "by another name": "last = net.head\nfully_shard(last)\nfully_shard(net)\n"
    "net.head = torch.compile(net.head)\n",
    "beside its wrapper": SHARD + "fast = [torch.compile(b) for b in net.blocks]\n",
}


@pytest.mark.parametrize(("before", "after"), WRAPPED_FIRST.values(), ids=WRAPPED_FIRST)
def test_a_block_is_wrapped_before_it_is_sharded(before: str, after: str) -> None:
    assert changed(before, "FSDP226") == (after, False)


@pytest.mark.parametrize("body", SHARDED_STILL.values(), ids=SHARDED_STILL)
def test_a_wrapper_stays_where_the_block_would_be_sharded_all_the_same(body: str) -> None:
    assert changed(body, "FSDP226") == (body, True)
