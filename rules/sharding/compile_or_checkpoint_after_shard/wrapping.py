"""Whether what shards a block would find its wrapper there, were the block wrapped before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Edit,
    Event,
    Layout,
    Module,
    Part,
    Replace,
    Site,
    Trace,
    Value,
    Wrapping,
    unwrapped,
    walk,
)

from ..._common.fixes import call_of, first_argument, sites_together
from ..._common.shared import Shard, shards

_APPLY = (
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.apply_activation_checkpointing"
)


def wrappers_sharded(
    trace: Trace, pairs: Sequence[tuple[Wrapping, Shard]]
) -> Sequence[Edit] | None:
    """The edits that make calls of ``fully_shard`` take the wrapper that an earlier call has made.

    Of the pairs each wrapping comes after the sharding now. None where the block itself would be sharded still.
    """
    edits: dict[cst.CSTNode, Edit | None] = {}
    for wrapping, shard in pairs:
        if wrapping.result is wrapping.module:
            if _wrapped_below(trace, wrapping, shard) and not _finds_wrappers(
                trace, wrapping, shard
            ):
                return None
            continue
        if not _takes_the_place(trace, wrapping):
            return None
        if shard.module is not unwrapped(wrapping.module) or shard.event.at.node in edits:
            continue
        call = call_of(shard.event.at)
        handed = None if call is None else first_argument(call)
        if handed is None or _is_chosen_by_class(shard):
            return None
        if _read_anew(trace, wrapping, shard, handed):
            edits[shard.event.at.node] = None
            continue
        place = _place(wrapping, shard, handed)
        if not place:
            return None
        edits[shard.event.at.node] = Replace(shard.event.at.source, handed, place)
    return [edit for edit in edits.values() if edit is not None]


def _wrapped_below(trace: Trace, wrapping: Wrapping, shard: Shard) -> bool:
    """Whether wrappers come around what is inside a module, and this is of what is inside it."""
    inner = shard.module is not unwrapped(wrapping.module)
    applied = any(one.at.node is wrapping.at.node for one in trace.calls(_APPLY))
    return applied and inner and trace.inside(shard.module, wrapping.module)


def _finds_wrappers(trace: Trace, wrapping: Wrapping, shard: Shard) -> bool:
    call = call_of(shard.event.at)
    handed = None if call is None else first_argument(call)
    if handed is None or _is_chosen_by_class(shard):
        return False
    return _read_anew(trace, wrapping, shard, handed)


def _takes_the_place(trace: Trace, wrapping: Wrapping) -> bool:
    """Whether a wrapper is put where the module was."""
    holders = set(_holders(trace, unwrapped(wrapping.module)))
    return any(holder in holders for holder in _holders(trace, wrapping.result))


def _holders(trace: Trace, value: Value) -> Iterator[Value]:
    yield from (h for h in trace.memory.held_by.get(value, ()) if isinstance(h, Module))
    while isinstance(value, Part):
        value = value.owner
        if isinstance(value, Module):
            yield value


def _is_chosen_by_class(shard: Shard) -> bool:
    """Whether only modules of some classes are sharded: a wrapper is of another one."""
    site = shard.event.at
    tests = [a.test for a in Layout.of(site.source).ancestors(site.node) if isinstance(a, cst.If)]
    return any(_asks_for_class(guard.test) for guard in shard.guards) or any(
        isinstance(n, cst.Name) and n.value in ("isinstance", "type")
        for t in tests
        for n in walk(t)
    )


def _asks_for_class(test: Value) -> bool:
    return isinstance(test, Part) and test.operation == "isinstance"


def _read_anew(trace: Trace, wrapping: Wrapping, shard: Shard, handed: cst.BaseExpression) -> bool:
    """Whether the model is asked for the block when it is sharded, not before it was wrapped."""
    moving = sites_together(wrapping, shard.event)[0]
    read: cst.BaseExpression | None = handed
    if isinstance(handed, cst.Name):
        read = _walked(shard.event.at, handed.value, moving)
    while isinstance(read, cst.Call):
        asks = isinstance(read.func, cst.Attribute) and not read.args
        read = read.func if asks else first_argument(read)
    if isinstance(read, cst.Attribute):
        return True
    while isinstance(read, cst.Subscript):
        read = read.value
    return isinstance(read, cst.Attribute) or _is_module(trace, shard.event, read)


def _walked(site: Site, name: str, moving: Site) -> cst.BaseExpression | None:
    """What the loop walks that binds a name, unless it is around what moves too."""
    layout = Layout.of(site.source)
    around_moving = set(layout.ancestors(moving.node)) if moving.source is site.source else set()
    for around in layout.ancestors(site.node):
        if isinstance(around, cst.FunctionDef | cst.Lambda):
            return None
        if isinstance(around, cst.For) and any(
            isinstance(n, cst.Name) and n.value == name for n in walk(around.target)
        ):
            return None if around in around_moving else around.iter
    return None


def _is_module(trace: Trace, event: Event, read: cst.CSTNode | None) -> bool:
    """Whether a name is that of a module: its function shards it under that name too."""
    if not isinstance(read, cst.Name):
        return False
    for shard in shards(trace):
        call = call_of(shard.event.at)
        handed = None if call is None else first_argument(call)
        if isinstance(handed, cst.Name) and handed.value == read.value:
            if shard.event.at.source is event.at.source and shard.event.calls == event.calls:
                return True
    return False


def _place(wrapping: Wrapping, shard: Shard, handed: cst.BaseExpression) -> str:
    """Where the wrapper of the very module that is sharded in the same function is put."""
    moving, site = sites_together(wrapping, shard.event)
    call = call_of(wrapping.at)
    if moving.node is not wrapping.at.node or site.node is not shard.event.at.node or call is None:
        return ""
    source = wrapping.at.source
    assigned = Layout.of(source).parents.get(call)
    wrapped = first_argument(call)
    if not isinstance(assigned, cst.Assign) or len(assigned.targets) != 1 or wrapped is None:
        return ""
    if source.code(wrapped) != source.code(handed):
        return ""
    target = assigned.targets[0].target
    return (
        source.code(target) if isinstance(target, cst.Attribute | cst.Subscript | cst.Name) else ""
    )
