"""The fixes of devices: one is chosen where none was, earlier, or by the rank on the host."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Called,
    Event,
    Fix,
    GroupStarted,
    InsertBefore,
    Layout,
    Moved,
    Name,
    Names,
    Sharded,
    Site,
    Trace,
    Value,
    scope_of,
)

from ..._common.fixes import call_of
from ..._common.fixes_effects import Effect, holds
from ..._common.meshes import INIT
from .devices import is_global, local_rank, own_local_rank, spelled, to_current
from .launch import from_environment, from_outside, from_torchrun, needs_local_rank

_INIT = "torch.distributed.init_process_group"
_UNSET = "whoever starts the ranks must set `LOCAL_RANK`"
_PLAIN = (cst.Call, cst.Arg, cst.Attribute)
_STATEMENTS = (cst.Expr, cst.Assign, cst.AnnAssign, cst.Return)


def device_chosen(trace: Trace, moved: Moved, started: GroupStarted) -> Fix | None:
    """`torch.cuda.set_device` above the start of the process group, else above the first move of a model.

    None unless ranks come from the environment, and the call there is surely one for GPUs: it names NCCL or
    CUDA itself, and is made whenever its statement runs.
    """
    called = next((c for c in trace.calls(_INIT) if c.at.node is started.at.node), None)
    if called is None or not from_environment(called) or not from_outside(trace):
        return None
    site = _place(moved, started)
    if site is None:
        return None
    source, node = site.source, site.node
    own = own_local_rank(trace, source, node)
    rank = Name(own) if own else local_rank(source, node)
    setter = spelled(source, node, "torch", "cuda.set_device")
    insert = InsertBefore(source, node, f"{setter.text}({rank.text})")
    edits = (insert, *setter.edits, *rank.edits)
    title = "choose the device of the rank"
    if not from_torchrun(trace) or not (own or needs_local_rank(trace)):
        return Fix(title, edits, "unsafe", _UNSET)
    if source is not trace.source:
        return Fix(title, edits, "unsafe", "other scripts may come here with a device of their own")
    return Fix(title, edits, "safe")


def _place(moved: Moved, started: GroupStarted) -> Site | None:
    """The call above which to choose."""
    earlier = started.order < moved.order and moved.guards.implies(started.guards)
    if earlier and _says(started.at, "nccl") and _surely(started.at):
        return started.at
    named = _says(moved.at, "cuda") or moved.how == "cuda"
    return moved.at if named and _surely(moved.at) else None


def _says(site: Site, text: str) -> bool:
    """Whether a call is given a text as it is there."""
    call = call_of(site)
    return call is not None and any(
        isinstance(a.value, cst.SimpleString) and a.value.evaluated_value == text for a in call.args
    )


def _surely(site: Site) -> bool:
    """Whether a call is made whenever its statement runs."""
    for around in Layout.of(site.source).ancestors(site.node):
        if isinstance(around, _STATEMENTS):
            return True
        if not isinstance(around, _PLAIN):
            return False
    return False


def chosen_before(trace: Trace, chosen: Called) -> Fix | None:
    """The choice above everything that asks for the current device."""
    asking: list[Event] = list(trace.before(chosen, Sharded))
    asking += (m for m in trace.before(chosen, Moved) if to_current(m))
    asking += (c for c in trace.calls(INIT) if trace.precedes(c, chosen))
    effect = Effect.among(chosen, asking)
    if effect is None or not effect.is_only({chosen.at.node}) or effect.disturbed():
        return None
    if _asks_the_group(trace, effect) and not _started_above(trace, effect):
        return None
    return effect.above("choose the device before the sharding", "look at what was made before it")


def _asks_the_group(trace: Trace, effect: Effect) -> bool:
    """Whether the statement calls functions that need a process group."""
    return any(
        called.name.startswith("torch.distributed.") and holds(effect.line, called)
        for called in trace.of(Called)
    )


def _started_above(trace: Trace, effect: Effect) -> bool:
    """Whether the process group is surely started above the first of the statements to move over."""
    started = list(trace.before(effect.moving, GroupStarted))
    below = any(holds(one, event) for one in effect.between for event in started)
    return not below and any(effect.moving.guards.implies(s.guards) for s in started)


def by_local_rank(trace: Trace, chosen: Called) -> Fix | None:
    """The local rank in place of the global one, if nothing else is a device by that number."""
    call, source = call_of(chosen.at), chosen.at.source
    if call is None or len(call.args) != 1 or _comes_from_elsewhere(chosen.at, call.args[0].value):
        return None
    for called in trace.calls(".to", ".cuda", "torch.device"):
        if any(names_global(v) for v in (*called.arguments, *called.keywords.values())):
            return None
    own = own_local_rank(trace, source, call)
    rank = Name(own) if own else local_rank(source, call)
    edit = Arguments(source, call).replace(call.args[0], rank.text)
    title, edits = "choose the device by the local rank", (edit, *rank.edits)
    if needs_local_rank(trace) and source is trace.source:
        return Fix(title, edits, "safe")
    return Fix(title, edits, "unsafe", _UNSET)


def _comes_from_elsewhere(site: Site, value: cst.BaseExpression) -> bool:
    """Whether callers hand a value over: then others of them may mean another number, or set no rank."""
    if isinstance(value, cst.Call):
        return False
    names, scope = Names.of(site.source), scope_of(Layout.of(site.source).ancestors(site.node))
    home = names.owner(value.value, scope) if isinstance(value, cst.Name) else None
    if home is None or not isinstance(value, cst.Name):
        return True
    return any(isinstance(bound, cst.Param) for bound in names.bindings[home][value.value])


def names_global(value: Value) -> bool:
    """Whether a value is the global rank, or a text with it (``f"cuda:{rank}"``)."""
    held = value.operands if value.operation == "format" else ()
    return any(is_global(v) for v in (value, *held) if isinstance(v, Value))
