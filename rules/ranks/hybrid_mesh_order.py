"""The names of a mesh say (shard, replicate), and `fully_shard` does it the other way round.

## What it does

Finds meshes of two dimensions for `fully_shard` whose first is named for sharding and whose second is named for
replicating, and those whose first is as large as a host and whose second counts the hosts.

## Why is this bad

`fully_shard` replicates over the first dimension and shards over the second; it never looks at the names. A
mesh of (8 shards, 2 replicas) becomes 8 replicas of 2 shards: each rank holds four times what was planned,
and the gathers cross the hosts that they were to stay within. FSDP1 took its process groups in the order
(shard, replicate), so this comes with migrated scripts.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.device_mesh import init_device_mesh
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
-mesh = init_device_mesh("cpu", (8, 2), mesh_dim_names=("shard", "replicate"))
+mesh = init_device_mesh("cpu", (2, 8), mesh_dim_names=("replicate", "shard"))
 model = nn.Linear(8, 8)
 fully_shard(model, mesh=mesh)
```

## Forms

- Found: a helper function that makes the mesh.
- Found: the GPUs of a host first, the hosts second.
- Not found: names that do not say which is which.

## Fix safety

Unsafe: ranks change their places in the mesh, which other code (the data loader) may know by number.

## Known limits

Known are names that speak of sharding (`shard`, `fsdp`, `zero`, `intra`, `local`) first and of replication
(`replicate`, `replica`, `ddp`, `inter`, `node`, `host`; beside `fsdp` also `dp` and `data`) second; and sizes that are the number of GPUs of a host
(`torch.cuda.device_count()`, `LOCAL_WORLD_SIZE`) first and the world size divided by it second. Other meshes are not
judged.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`mesh`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_get_mesh_info`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    External,
    Finding,
    Fix,
    Literal,
    Mesh,
    Part,
    Replace,
    Sharded,
    Trace,
    Value,
    of_world_size,
    rule,
)

from .._common.meshes import given_meshes, made, turned, written


@rule(code="FSDP403", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Meshes whose names are in the other order, each where it is used first."""
    reported: set[Mesh] = set()
    for sharded in trace.of(Sharded):
        for mesh in given_meshes(sharded):
            if not isinstance(mesh, Mesh) or mesh in reported or turned(mesh):
                continue
            called = made(trace, mesh)
            message = _swapped(mesh.names or ()) or _swapped_sizes(trace, called)
            if message:
                reported.add(mesh)
                yield Finding(
                    at=sharded,
                    message=message,
                    because=() if called is None else ((called, "the mesh is made here"),),
                    fix=_in_order(trace, mesh),
                )
                break


_SHARDS = re.compile(r"shard|fsdp|zero|intra|local|within", re.IGNORECASE)
_REPLICATES = re.compile(r"repl|ddp|inter|nodes?$|hosts?$|across", re.IGNORECASE)
_BESIDE_FSDP = re.compile(r"(dp|data|data_?parallel)", re.IGNORECASE)
"""What the dimension to replicate over is called beside one whose name says FSDP."""


def _swapped(names: tuple[str, ...]) -> str:
    """What is wrong with the names of two dimensions: the first says sharding, the second replication."""
    if len(names) != 2:
        return ""
    first, second = names
    shards = _SHARDS.search(first) and not _REPLICATES.search(first)
    replicates = _REPLICATES.search(second) or (
        "fsdp" in first.lower() and _BESIDE_FSDP.fullmatch(second)
    )
    if not shards or not replicates or _SHARDS.search(second):
        return ""
    return (
        f"`fully_shard` replicates over `{first}` and shards over `{second}`: the first dimension of a mesh is "
        "the one to replicate over, whatever its name"
    )


def _swapped_sizes(trace: Trace, called: Called | None) -> str:
    """What is wrong with the sizes of two dimensions: the ranks of a host first, the number of hosts second."""
    shape = None if called is None or called.open else called.argument(1, "mesh_shape")
    entries = [] if shape is None else [v for _, v in trace.memory.entries(shape)]
    if len(entries) != 2 or not _of_one_host(entries[0]) or not _hosts(entries[1]):
        return ""
    return (
        f"`fully_shard` replicates over the first dimension, as many ranks as a host has (`{entries[0].words()}`), and "
        "shards over the hosts: give the number of hosts first"
    )


_HOST_SIZES = (
    "torch.cuda.device_count",
    "torch.accelerator.device_count",
    "torch.xpu.device_count",
)


def _of_one_host(size: Value) -> bool:
    """Whether a number is that of the ranks of one host."""
    while isinstance(size, Part) and size.key == ("int",):
        size = size.owner
    if not isinstance(size, Part):
        return False
    if size.key == "['LOCAL_WORLD_SIZE']":
        return True
    asked = any(isinstance(v, Literal) and v.value == "LOCAL_WORLD_SIZE" for v in size.operands)
    return asked or (isinstance(size.owner, External) and size.owner.name in _HOST_SIZES)


def _hosts(size: Value) -> bool:
    """Whether a number is the number of all ranks divided by that of one host."""
    if isinstance(size, Literal):
        return size.value == -1
    return (
        isinstance(size, Part)
        and size.operation == "//"
        and of_world_size(size.owner)
        and isinstance(size.operands[0], Value)
        and _of_one_host(size.operands[0])
    )


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
