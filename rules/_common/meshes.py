"""The meshes that `fully_shard` is given: how they were made and what their dimensions are."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Called,
    Container,
    Literal,
    Mesh,
    Sharded,
    Trace,
    Value,
    Wrapping,
)

from .fixes import call_of
from .shared import cases, class_name

INIT = "torch.distributed.device_mesh.init_device_mesh"


def given_meshes(sharded: Sharded) -> Iterator[Value]:
    """What the mesh of a `fully_shard` call can be; nothing when its dimensions are chosen by name.

    `dp_mesh_dims` (2.13) says which dimensions of a larger mesh are meant.
    """
    given = sharded.options.get("mesh")
    if given is not None and "dp_mesh_dims" not in sharded.options:
        yield from (value for _, value in cases(sharded, given))


def made(trace: Trace, mesh: Mesh) -> Called | None:
    """The call of `init_device_mesh` that a mesh comes from."""
    return next((called for called in trace.calls(INIT) if called.result is mesh), None)


def dimensions(trace: Trace, mesh: Mesh) -> int | None:
    """How many dimensions a mesh has, when that is known."""
    if mesh.names is not None:
        return len(mesh.names)
    called = made(trace, mesh)
    shape = None if called is None else called.argument(1, "mesh_shape")
    if not isinstance(shape, Container) or shape.open or called is None:
        return None
    return len(list(trace.memory.entries(shape, called.guards)))


def turned(mesh: Mesh) -> bool:
    """Whether a mesh is a slice by names in another order than that of the mesh around it, which raises KeyError."""
    names = mesh.owner.names if isinstance(mesh.owner, Mesh) else None
    asked = [name for name in mesh.names or () if names and name in names]
    return names is not None and asked != sorted(asked, key=names.index)


def unnamed(trace: Trace, mesh: Mesh) -> bool:
    """Whether a mesh surely has no dimension names."""
    called = made(trace, mesh)
    if mesh.names is not None or called is None or called.open:
        return False
    names = called.argument(2, "mesh_dim_names")
    return names is None or (isinstance(names, Literal) and names.value is None)


def written(called: Called, position: int, keyword: str) -> cst.Tuple | cst.List | None:
    """The display that is written for an argument of a call."""
    call = call_of(called.at)
    for index, argument in enumerate(() if call is None else call.args):
        if argument.star:
            return None
        named = argument.keyword
        if (index == position and named is None) or (named is not None and named.value == keyword):
            shown = argument.value
            return shown if isinstance(shown, cst.Tuple | cst.List) else None
    return None


def arguments(called: Called) -> Arguments | None:
    """The arguments of a call, to be changed."""
    call = call_of(called.at)
    return None if call is None else Arguments(called.at.source, call)


_PARALLEL = "torch.distributed.tensor.parallel."
_STYLES = (f"{_PARALLEL}ColwiseParallel", f"{_PARALLEL}RowwiseParallel")
"""Styles that distribute parameters; others only prepare what goes in and out."""


def parallelized(trace: Trace, wrapping: Wrapping) -> Called | None:
    """The call of `parallelize_module` by which a module is wrapped."""
    calls = trace.calls(f"{_PARALLEL}parallelize_module")
    return next((called for called in calls if called.at.node is wrapping.at.node), None)


def distributes(trace: Trace, wrapping: Wrapping) -> bool:
    """Whether a plan distributes parameters, as far as the script shows it."""
    called = parallelized(trace, wrapping)
    plan = None if called is None else called.argument(2, "parallelize_plan")
    styles = [] if plan is None else [plan]
    if isinstance(plan, Container):
        styles = [style for _, style in trace.memory.entries(plan)]
    return any(class_name(style) in _STYLES for style in styles)


_FOREIGN = ("tp", "pp", "tensor_parallel", "pipeline_parallel")


def foreign(trace: Trace, mesh: Mesh) -> tuple[str, ...]:
    """The dimensions of a mesh over which parameters are split otherwise: by tensor or pipeline parallelism.

    Those that `parallelize_module` is given, and those that are named as PyTorch's guides name them.
    """
    split = {
        name
        for called in trace.calls(f"{_PARALLEL}parallelize_module")
        if isinstance(part := called.argument(1, "device_mesh"), Mesh) and part.owner is mesh
        for name in part.names or ()
    }
    if mesh.names is None:
        return tuple(sorted(split))
    return tuple(n for n in mesh.names if n in split or n.lower() in _FOREIGN)
