"""`fully_shard` is given a mesh that it does not take.

## What it does

Finds meshes of three or more dimensions, meshes of two dimensions without names, slices by a name that the mesh
does not have or by names in another order, and process groups where `fully_shard` wants a mesh.

## Why is this bad

`fully_shard` shards over a mesh of one dimension, or replicates over the first and shards over the second of
two; the two must have names. For anything else it raises: `ValueError` for more dimensions, `AssertionError`
without names, `AttributeError` for a process group, which is what FSDP1 took.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.device_mesh import init_device_mesh
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
-mesh = init_device_mesh("cpu", (2, 4))
+mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp_replicate", "dp_shard"))
 model = nn.Linear(8, 8)
 fully_shard(model, mesh=mesh)
```

## Forms

- Found: a process group.
- Found: three dimensions.
- Found: a slice by a name that the mesh does not have.
- Found: a slice by names in another order than that of the mesh.
- Not found: a mesh that is built from a tensor of ranks.
- Found: a slice with three dimensions.

## Fix safety

Safe: names are added where there were none, and the call could not succeed before.

## Known limits

A slice by names in another order raises only where each of its dimensions has more than one rank (torch 2.13): it is silent
where one is written as 1. A mesh whose shape is not written out where it is made is not judged. Calls with `dp_mesh_dims` (2.13) are left
alone.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`mesh`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_validate_mesh`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Container,
    External,
    Finding,
    Fix,
    Literal,
    Mesh,
    Part,
    Sharded,
    Trace,
    Value,
    rule,
)

from .._common.meetings import is_group_of_a_mesh
from .._common.meshes import arguments, dimensions, foreign, given_meshes, made, turned, unnamed

_GROUPS = (
    "torch.distributed.new_group",
    "torch.distributed._get_default_group",
    "torch.distributed.new_subgroups",
)
_WORLD = ("torch.distributed.group.WORLD", "torch.distributed.GroupMember.WORLD")


@rule(code="FSDP415", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Meshes that raise, each where it is used first."""
    reported: set[Value] = set()
    for sharded in trace.of(Sharded):
        for mesh in given_meshes(sharded):
            problem = "" if mesh in reported else _problem(trace, mesh)
            if problem:
                reported.update(given_meshes(sharded))
                fix = _named(trace, mesh) if isinstance(mesh, Mesh) else None
                yield Finding(at=sharded, message=problem, fix=fix)
                break


def _problem(trace: Trace, mesh: Value) -> str:
    """Why `fully_shard` refuses a mesh; nothing when it does not."""
    if _is_group(mesh):
        return (
            f"`{mesh.words()}` is a process group: `fully_shard` takes a mesh, "
            "`DeviceMesh.from_group(group, device_type)`"
        )
    missing = _missing(trace, mesh)
    if missing:
        return missing
    number = dimensions(trace, mesh) if isinstance(mesh, Mesh) else None
    if not isinstance(mesh, Mesh) or number is None or foreign(trace, mesh):
        return ""
    if number > 2:
        return (
            f"`{mesh.words()}` has {number} dimensions: `fully_shard` takes one, or two to replicate over "
            "the first; slice the mesh"
        )
    if number == 2 and unnamed(trace, mesh):
        return f"the two dimensions of `{mesh.words()}` have no names, which `fully_shard` asks for"
    return ""


def _missing(trace: Trace, mesh: Value) -> str:
    """What is wrong with a slice by a name that its mesh does not have, or by names in another order."""
    whole = mesh.owner if isinstance(mesh, Mesh) else None
    if not isinstance(whole, Mesh) or not isinstance(mesh, Mesh) or whole.names is None:
        return ""
    has = ", ".join(f'"{name}"' for name in whole.names)
    if turned(mesh) and not _has_one_of_one(trace, whole, mesh):
        said = ", ".join(f'"{name}"' for name in mesh.names or ())
        return (
            f"the dimensions of `{whole.words()}` are {has}: a slice by {said}, in another order, raises KeyError "
            "where each has more than one rank"
        )
    if made(trace, whole) is None or any(trace.calls("._flatten")):
        return ""  # a dimension that is made of others has a name of its own
    unknown = [name for name in mesh.names or () if name not in whole.names]
    if not unknown:
        return ""
    return f'`{whole.words()}` has no dimension "{unknown[0]}" but {has}: the slice raises KeyError'


def _has_one_of_one(trace: Trace, whole: Mesh, mesh: Mesh) -> bool:
    """Whether a dimension of a slice has one rank by what the script writes: then any order will do (torch 2.13)."""
    call = made(trace, whole)
    shape = call.argument(1, "mesh_shape") if call is not None else None
    if not isinstance(shape, Container) or whole.names is None:
        return False
    sizes = dict(zip(whole.names, (size for _, size in trace.memory.entries(shape)), strict=False))
    asked = [sizes.get(name) for name in mesh.names or ()]
    return any(isinstance(size, Literal) and size.value == 1 for size in asked)


def _is_group(value: Value) -> bool:
    if isinstance(value, External):
        return value.name in _WORLD
    made = value.owner if isinstance(value, Part) and value.operation == "call" else None
    return is_group_of_a_mesh(value) or (isinstance(made, External) and made.name in _GROUPS)


def _named(trace: Trace, mesh: Mesh) -> Fix | None:
    """Names for the two dimensions, where the mesh is made."""
    called = made(trace, mesh)
    change = None if called is None else arguments(called)
    if change is None or dimensions(trace, mesh) != 2:
        return None
    edit = change.set("mesh_dim_names", '("dp_replicate", "dp_shard")')
    return Fix("name the dimensions", (edit,), "safe")
