"""The fix of what is done to a model after its sharding and belongs before it.

The statement moves above the first one that shards, with the settings that it needs (``plan = {…}``, an
import). What stays below must neither bind what it reads nor use what it binds, and leave the model alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Assigned,
    Augmented,
    Called,
    Edit,
    Escaped,
    Event,
    Exited,
    Fix,
    Iterated,
    Move,
    Operated,
    OptimizerBuilt,
    Part,
    Read,
    Returned,
    Sharded,
    Trace,
    Value,
    Wrapping,
)

from ..._common.meta import touches
from ..._common.shared import asks_for_fsdp2
from .exposed import exposed
from .region import Region, leaves, region

_CARRIED = (Called, Wrapping, Assigned, Read, Iterated, Returned, Operated, Augmented, Exited)
"""What may happen in statements that move; an escape is looked at apart."""

_JUMPED = (Called, Escaped, Wrapping, Assigned, Operated, Augmented)
"""What may happen in statements that stay, to anything but the model."""

_HARMLESS = (Sharded, OptimizerBuilt, Read, Iterated, Returned, Exited)
"""What may happen there to the model too."""

_ASKED = frozenset(
    ".parameters .named_parameters .modules .named_modules .children .named_children .items .keys "
    ".values .train .eval .get_submodule".split()
)
_ASKED_BELOW = ("builtins.", "torch.optim.", "torch.distributed.fsdp.fully_shard")
"""Calls that leave a module as it is, or shard it."""

_OF_SHARDED = ("torch.distributed.fsdp.", "torch.distributed.checkpoint.")
_TAKES_PARAMETERS = (".parameters", ".named_parameters", ".state_dict", ".buffers")


def lifted(
    trace: Trace,
    moving: Event,
    above: Sequence[Sharded],
    title: str,
    note: str,
    more: Sequence[Edit] = (),
    *,
    whatever: bool = False,
) -> Fix | None:
    """Move the statement of an event above the first of some shardings, with the settings that it reads.

    None unless all are in one block and nothing between cares; with ``whatever`` the model may do anything
    between. ``more`` are further edits of the fix.
    """
    found = region(trace, moving, above)
    if found is None:
        return None
    modules = [module for sharded in above for module in sharded.modules]
    carried = _carried(found)
    if not carried or not all(_can_move(trace, found, one, modules) for one in carried):
        return None
    for index, staying in enumerate(found.statements):
        if staying in carried:
            continue
        jumping = [one for one in found.statements[index:] if one in carried]
        if leaves(staying) or (not whatever and _cares(trace, found, staying, modules)):
            return None
        if any(_conflict(found, one, staying) for one in jumping):
            return None
    first = found.statements[0]
    edits = [Move(found.source, one, before=first) for one in carried]
    return Fix(title, (*edits, *more), "unsafe", note)


def _carried(found: Region) -> list[cst.CSTNode]:
    """The last statement and the settings above it that it reads; nothing when something else binds those."""
    *between, last = found.statements
    carried, needed = [last], exposed([last])
    for one in reversed(between):
        if found.writes(one) & needed:
            if not _is_setting(one):
                return []
            carried.insert(0, one)
            needed |= exposed([one])
    return carried


def _is_setting(statement: cst.CSTNode) -> bool:
    """Whether a statement does nothing but give names to values."""
    if isinstance(statement, cst.FunctionDef):
        return True
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return False
    (small,) = statement.body
    if isinstance(small, cst.Assign):
        return all(isinstance(one.target, cst.Name) for one in small.targets)
    if isinstance(small, cst.AnnAssign):
        return isinstance(small.target, cst.Name) and small.value is not None
    return isinstance(small, cst.Import | cst.ImportFrom)


def _can_move(
    trace: Trace, found: Region, statement: cst.CSTNode, modules: Collection[Value]
) -> bool:
    """Whether what happens in a statement can happen before the sharding too."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) != 1:
        return False
    if leaves(statement):
        return False
    for event in found.happened[statement]:
        tests = (guard.test for guard in event.guards)
        if any(isinstance(test, Part) and asks_for_fsdp2(test) for test in tests):
            return False
        if isinstance(event, Escaped):
            if any(touches(trace, event.value, module) for module in modules):
                return False
        elif not isinstance(event, _CARRIED) or _for_shards(event):
            return False
    return True


def _for_shards(event: Event) -> bool:
    """Whether a call is made of what the sharding leaves: the new parameters, a sharded state."""
    return isinstance(event, Called) and (
        event.name.startswith(_OF_SHARDED) or event.name in _TAKES_PARAMETERS
    )


def _cares(trace: Trace, found: Region, statement: cst.CSTNode, modules: Collection[Value]) -> bool:
    """Whether a statement that stays does more to the model than to shard it."""
    return any(
        not isinstance(event, _HARMLESS)
        and not (isinstance(event, Called) and _asks(event))
        and (not isinstance(event, _JUMPED) or _about(trace, event, modules))
        for event in found.happened[statement]
    )


def _asks(called: Called) -> bool:
    return called.name in _ASKED or called.name.startswith(_ASKED_BELOW)


def _about(trace: Trace, event: Event, modules: Collection[Value]) -> bool:
    return any(touches(trace, one, module) for one in _subjects(event) for module in modules)


def _subjects(event: Event) -> Iterator[Value]:
    """The values that an event is about, those of a call with its arguments."""
    for name in type(event).__dataclass_fields__:
        held = getattr(event, name)
        several = held.values() if isinstance(held, dict) else held
        for one in several if isinstance(held, dict | tuple) else (held,):
            if isinstance(one, Value):
                yield one


def _conflict(found: Region, moving: cst.CSTNode, staying: cst.CSTNode) -> bool:
    """Whether one of two statements that change places binds what the other one needs."""
    if found.writes(staying) & found.reads(moving):
        return True
    bound = found.writes(moving)
    if bound & found.reads(staying):
        return True
    both = bound & found.writes(staying)
    return bool(both & exposed(found.below) if found.whole else both)
