"""The fix of `no_sync`: the block around the body goes, a switch before it comes."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import (
    Fix,
    SyncPaused,
    SyncSwitched,
    Trace,
    options,
    paused_block,
    unwrapped,
)

from ..._common.fixes import call_of, path_text, receiver_of
from ..._common.shared import sharded, wrapped_before


def switched_instead(trace: Trace, paused: SyncPaused) -> Fix | None:
    """``set_requires_gradient_sync`` in place of a ``with model.no_sync():`` around a backward.

    None unless the model has surely been sharded itself, every backward inside and outside of the block is
    resolved, and the script switches nothing itself.
    """
    receiver = receiver_of(paused.at)
    model = path_text(paused.at, receiver)
    call = call_of(paused.at)
    if not model or call is None or call.args or not _always_sharded(trace, paused):
        return None
    if any(trace.concerns(e, unwrapped(paused.module)) for e in trace.of(SyncSwitched)):
        return None
    block = paused_block(paused.at.source, call, lambda node: _does_nothing(trace, paused, node))
    if block is None:
        return None
    inside, outside = block.backwards([trace])
    if not inside or (block.flag is None and not outside):
        return None
    again = outside or not trace.known(paused.module)
    if again and block.may_be_left():
        return None
    edits = block.switched(model, again=again)
    if again:
        title = "switch the gradient synchronisation before and after the block"
        return Fix(title, edits, "unsafe", "an exception in the block leaves it switched off")
    title = "switch the gradient synchronisation before the backward"
    if paused.at.source is trace.source:
        return Fix(title, edits, "safe")
    return Fix(title, edits, "unsafe", "other scripts may come here with a model of another kind")


def _always_sharded(trace: Trace, paused: SyncPaused) -> bool:
    """Whether the module is one that ``fully_shard`` itself was applied to, whenever the call is reached."""
    for event in trace.of(SyncPaused):
        if event.at.node is not paused.at.node:
            continue
        found = sharded(trace, event, event.module, itself=True)
        if found is None or len(options(event.module)) != 1:
            return False
        shard, module = found
        if wrapped_before(trace, event, module, "ddp", "fsdp1"):
            return False
        if not event.guards.implies(shard.guards):
            return False
    return True


def _does_nothing(trace: Trace, paused: SyncPaused, other: cst.BaseExpression) -> bool:
    """Whether the other side of a choice is ``nullcontext()``, and the module is surely sharded there too."""
    found = sharded(trace, paused, paused.module, itself=True)
    taken = [c for c in trace.calls("contextlib.nullcontext") if c.at.node is other]
    if found is None or not taken:
        return False
    return all(c.guards.implies(found[0].guards) for c in taken)
