"""Which device a model goes to, and how the rank on the host, which chooses it, is written."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import (
    Called,
    Layout,
    Literal,
    Moved,
    Name,
    Names,
    Part,
    Rank,
    Source,
    Trace,
    Value,
    name_for,
    options,
    scope_of,
)

from ..._common.shared import class_name


def to_current(moved: Moved) -> bool:
    """Whether a move goes to the current GPU."""
    if moved.how == "cuda":
        return not moved.to
    return moved.how == "to" and any(
        isinstance(name, Literal) and name.value == "cuda"
        for one in moved.to
        for device in options(one)
        for name in _names(device)
    )


def names_own(moved: Moved) -> bool:
    """Whether a move goes to the GPU that the rank on the host numbers: ``f"cuda:{local_rank}"``."""
    devices = [device for one in moved.to for device in options(one)]
    if moved.how == "cuda":
        return any(map(_is_of_local_rank, devices))
    return moved.how == "to" and any(
        _is_of_local_rank(name)
        for device in devices
        for name in (*_names(device), *_number(device))
    )


def _is_of_local_rank(value: Value) -> bool:
    """Whether a value is the rank on the host, or a text with it."""
    parts = value.made_of if isinstance(value, Part) else ()
    return any(isinstance(one, Rank) and one.scope == "local" for one in (value, *parts))


def _number(device: Value) -> tuple[Value, ...]:
    """The number of a device that is made with one: ``torch.device("cuda", 3)``."""
    if class_name(device) == "torch.device":
        return tuple(options(device.part(".argument1")))
    return ()


def _names(device: Value) -> tuple[Value, ...]:
    """What a device is called: the device itself where it is a string."""
    if class_name(device) == "torch.device":
        return tuple(options(device.part(".argument0")))
    return (device,)


def is_global(value: Value | None) -> bool:
    """Whether a value is the rank among all ranks."""
    return isinstance(value, Rank) and value.scope == "global"


def own_local_rank(trace: Trace, source: Source, node: cst.CSTNode) -> str:
    """A name of the script that holds the rank on the host at ``node``, or nothing."""
    calls = (c.at.node for c in trace.of(Called) if c.at.source is source and _is_local(c))
    return next(filter(None, (_own_name(source, call, node) for call in calls)), "")


def local_rank(source: Source, node: cst.CSTNode) -> Name:
    """The rank on the host as torchrun sets it."""
    environ = spelled(source, node, "os", "environ")
    return Name(f'int({environ.text}["LOCAL_RANK"])', environ.edits)


def _is_local(called: Called) -> bool:
    return isinstance(called.result, Rank) and called.result.scope == "local"


def spelled(source: Source, node: cst.CSTNode, module: str, rest: str) -> Name:
    """How `module.rest` is written at a node: as the file imports it, else by `import module`."""
    known = name_for(source, node, f"{module}.{rest}")
    if not known.edits:
        return known
    home = name_for(source, node, module, module=True)
    return Name(f"{home.text}.{rest}", home.edits)


def _own_name(source: Source, call: cst.CSTNode, node: cst.CSTNode) -> str:
    """The name that holds the value of a call at ``node``: bound once, above it, in its block or around it."""
    layout, names = Layout.of(source), Names.of(source)
    assign = layout.parents.get(call)
    if not isinstance(assign, cst.Assign) or assign.value is not call or len(assign.targets) != 1:
        return ""
    target = assign.targets[0].target
    if not isinstance(target, cst.Name):
        return ""
    home = scope_of(layout.ancestors(assign))
    bound = names.bindings.get(home, {}).get(target.value, ())
    meant = names.owner(target.value, scope_of(layout.ancestors(node))) is home
    if len(bound) != 1 or not meant or layout.span(assign)[1] > layout.span(node)[0]:
        return ""
    around = (node, *layout.ancestors(node))
    return target.value if layout.block(assign) in around else ""
