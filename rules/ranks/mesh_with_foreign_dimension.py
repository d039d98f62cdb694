"""`fully_shard` gets a mesh with the dimension of another parallelism in it.

## What it does

Finds meshes with a dimension for tensor or pipeline parallelism that are given to `fully_shard` whole: the
dimension is named `tp` or `pp`, or `parallelize_module` is given it. Also `fully_shard` without a mesh, which takes all ranks,
where `parallelize_module` has split the parameters over a slice, and the same slice given to both.

## Why is this bad

`fully_shard` takes every dimension for its own. With two it replicates over the first and shards over the second,
whatever they are for: gradients of different stages are averaged, or the data ranks all keep the
whole model. If the parameters are split over the dimension already, it raises; so it does where its mesh and that of the
split have no mesh in common.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.device_mesh import init_device_mesh
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 mesh = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
 model = nn.Linear(8, 8)
-fully_shard(model, mesh=mesh)
+fully_shard(model, mesh=mesh["dp"])
```

## Forms

- Found: a dimension that `parallelize_module` is given, by any name.
- Found: a mesh that an object keeps.
- Found: no mesh at all, where tensor parallelism has split the parameters.
- Found: a slice that still has the foreign dimension.
- Found: the slice that `parallelize_module` was given, once more.
- Not found: a slice whose names are put together at run time.

## Fix safety

Unsafe: the number of ranks that a parameter is sharded over changes, and with it what fits into memory.

## Known limits

Context and sequence parallelism share their parameters between ranks, so their dimensions are no mistake. Calls
with `dp_mesh_dims` (2.13) are left alone.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`mesh`)
- https://docs.pytorch.org/tutorials/intermediate/TP_tutorial.html (FSDP with tensor parallelism)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Arguments,
    Finding,
    Fix,
    Mesh,
    Sharded,
    Trace,
    Wrapping,
    argument,
    options,
    rule,
    unwrapped,
)

from .._common.fixes import call_of, path_text
from .._common.meshes import distributes, foreign, given_meshes, made, parallelized
from .._common.shared import is_none, together


@rule(code="FSDP404", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Meshes that are for more than data parallelism."""
    yield from _split_already(trace)
    for sharded in trace.of(Sharded):
        for mesh in given_meshes(sharded):
            names = (isinstance(mesh, Mesh) and mesh.names) or ()
            if not isinstance(mesh, Mesh) or (mesh.names is not None and len(names) < 2):
                continue
            if mesh.names is None and mesh is not sharded.options.get("mesh"):
                continue  # one of several, where it may have one dimension only
            others = foreign(trace, mesh)
            if not others:
                continue
            said = " and ".join(f"`{name}`" for name in others)
            called = made(trace, mesh)
            yield Finding(
                at=sharded,
                message=f"`{mesh.words()}` has the dimension {said}, over which `fully_shard` replicates or "
                "shards too: give it the slice for data parallelism",
                because=() if called is None else ((called, "the mesh is made here"),),
                fix=_sliced(sharded, [n for n in names if n not in others]),
            )
            break


def _split_already(trace: Trace) -> Iterator[Finding]:
    """The mesh of all ranks, or the same slice once more, for parameters that are split over a dimension already."""
    for sharded in trace.of(Sharded):
        without = is_none(sharded.options.get("mesh")) and not sharded.open
        meshes = [one for one in given_meshes(sharded) if isinstance(one, Mesh)]
        split = [one for one in trace.of(Wrapping) if one.by == "tp"] if without or meshes else []
        for wrapping in reversed(split):
            if not _holds(trace, sharded, wrapping) or not trace.precedes(wrapping, sharded):
                continue
            called = parallelized(trace, wrapping)
            part = None if called is None else called.argument(1, "device_mesh")
            if not isinstance(part, Mesh) or not isinstance(part.owner, Mesh):
                continue
            if not without and part not in meshes:
                continue
            if not distributes(trace, wrapping) or not together(sharded.guards, wrapping.guards):
                continue
            said = "without `mesh=` `fully_shard` takes all ranks" if without else "given once more"
            yield Finding(
                at=sharded,
                message=f"parameters are split over `{part.words()}` already, and {said}: it raises; give it the slice "
                "for data parallelism",
                because=((wrapping, "the parameters are split here"),),
            )
            return  # the first one raises


def _holds(trace: Trace, sharded: Sharded, wrapping: Wrapping) -> bool:
    """Whether what `fully_shard` is given is, or is around, a module that tensor parallelism was applied to."""
    return any(
        trace.inside(unwrapped(wrapping.module), unwrapped(one)) for one in options(sharded.module)
    )


def _sliced(sharded: Sharded, left: list[str]) -> Fix | None:
    """The one dimension that is left of the mesh."""
    call = call_of(sharded.at)
    given = argument(call, -1, "mesh")
    if call is None or given is None or len(left) != 1 or not path_text(sharded.at, given.value):
        return None
    edit = Arguments(sharded.at.source, call).replace(
        "mesh", lambda new: f'{new.text}["{left[0]}"]'
    )
    return Fix(f'shard over `"{left[0]}"`', (edit,), "unsafe", "fewer ranks share a shard")
