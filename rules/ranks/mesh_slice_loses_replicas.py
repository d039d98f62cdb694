"""`fully_shard` gets only the sharding dimension of a mesh, so the replicas are never synchronised.

## What it does

Finds `fully_shard(…, mesh=mesh["dp_shard"])` where the mesh has a dimension for replicas as well
(`dp_replicate`, `replicate`) that the script uses nowhere.

## Why is this bad

Gradients are reduced over the dimensions that `fully_shard` is given. With the sharding dimension alone each
row of the mesh is a training run of its own: the replicas drift apart, nothing raises, and the larger batch
that was paid for is not there. Give it both dimensions, replicas first: `mesh["dp_replicate", "dp_shard"]`.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.device_mesh import init_device_mesh
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp_replicate", "dp_shard"))
 model = nn.Linear(8, 8)
-fully_shard(model, mesh=mesh["dp_shard"])
+fully_shard(model, mesh=mesh["dp_replicate", "dp_shard"])
```

## Forms

- Found: a helper function that shards each block.
- Found: a slice that a method gives.
- Not found: dimensions whose names do not say what they are for.

## Fix safety

Unsafe: both dimensions are named in the slice. The replicas are synchronised from then on, and the batch is
larger.

## Known limits

The dimension is known by its name, as PyTorch's guides spell it. Silent when it is used anywhere else
(another wrapper, a reduction by hand, the data), when it has one rank, when the dimension
that shards has one rank and no optimizer holds the model, and when the mesh is handed to code that cannot be followed.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`mesh`)
- https://docs.pytorch.org/tutorials/recipes/distributed_device_mesh.html
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Called,
    Finding,
    Fix,
    Layout,
    Literal,
    Mesh,
    OptimizerBuilt,
    Sharded,
    Trace,
    rule,
)

from .._common.fixes import call_of
from .._common.meshes import given_meshes, made
from .._common.shared import overlap

_REPLICAS = ("dp_replicate", "replicate", "replica", "replicas", "dp_rep", "ddp")


@rule(code="FSDP416", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Replicas that are never synchronised."""
    for sharded in trace.of(Sharded):
        for mesh in given_meshes(sharded):
            whole = mesh.owner if isinstance(mesh, Mesh) else None
            if not isinstance(mesh, Mesh) or not isinstance(whole, Mesh):
                continue
            lost = [n for n in whole.names or () if n.lower() in _REPLICAS]
            called = made(trace, whole)
            if len(lost) != 1 or called is None or lost[0] in (mesh.names or ()):
                continue
            if _used(trace, whole, lost[0], called) or _alone(trace, whole, lost[0], called):
                continue
            alone = all(_alone(trace, whole, name, called) for name in mesh.names or ())
            if alone and not _optimized(trace, sharded):
                continue  # one rank holds all: a way to offload a model that only computes
            if any(e.value in (whole, mesh) for e in trace.escapes(whole)):
                continue
            yield Finding(
                at=sharded,
                message=f"`{whole.words()}` has the dimension `{lost[0]}`, over which gradients are never reduced: "
                "the replicas drift apart silently; give `fully_shard` both dimensions",
                because=((called, "the mesh is made here"),),
                fix=_both(sharded, lost[0]),
            )
            break


def _optimized(trace: Trace, sharded: Sharded) -> bool:
    """Whether an optimizer holds parameters of what is sharded."""
    held = [p.of for built in trace.of(OptimizerBuilt) for p in built.over]
    return any(
        overlap(trace, one, module) is not None for one in held for module in sharded.modules
    )


def _used(trace: Trace, whole: Mesh, name: str, called: Called) -> bool:
    """Whether the dimension is taken from the mesh, or asked for by its name or number, anywhere."""
    for part in whole.parts():
        if isinstance(part, Mesh) and name in (part.names or ()):
            return True
    for asked in trace.of(Called):
        if asked is called or asked.receiver is not whole:
            continue
        given = (*asked.arguments, *asked.keywords.values())
        if asked.name != ".size" or not given:
            if not given or any(not isinstance(v, Literal) or v.value == name for v in given):
                return True
            if any(isinstance(v, Literal) and isinstance(v.value, int) for v in given):
                return True
    return False


def _alone(trace: Trace, whole: Mesh, name: str, called: Called) -> bool:
    """Whether the dimension has one rank only."""
    shape = called.argument(1, "mesh_shape")
    if shape is None or whole.names is None:
        return True
    sizes = [v for _, v in trace.memory.entries(shape)]
    position = whole.names.index(name)
    if position >= len(sizes):
        return False
    size = sizes[position]
    return isinstance(size, Literal) and size.value == 1


def _both(sharded: Sharded, name: str) -> Fix | None:
    """Both dimensions in the slice, replicas first."""
    call = call_of(sharded.at)
    for argument in () if call is None else call.args:
        if argument.keyword is None or argument.keyword.value != "mesh" or call is None:
            continue
        node = argument.value
        if not isinstance(node, cst.Subscript) or len(node.slice) != 1:
            return None
        if Layout.of(sharded.at.source).parents.get(node) is not argument:
            return None
        source = sharded.at.source
        index = source.code(node.slice[0].slice)
        text = f'{source.code(node.value)}["{name}", {index}]'
        edit = Arguments(source, call).replace("mesh", text)
        return Fix("reduce over both dimensions", (edit,), "unsafe", "the batch is larger then")
    return None
