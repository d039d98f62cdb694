"""Gathers of full states that only the first rank needs: offloaded, so that the others hold nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Event,
    Fix,
    MainRank,
    Part,
    Restored,
    Saved,
    StateDict,
    StateDictTaken,
    Trace,
    Value,
    options,
)

from ..._common.shared import DCP
from .checkpoints import switched_on

GETTERS = tuple(f"{DCP}state_dict.get_{what}state_dict" for what in ("model_", "optimizer_", ""))
HARMLESS = ("builtins.len", "builtins.print", "builtins.bool", "gc.collect")


def on_first(event: Event) -> bool:
    """Whether an event happens on the first rank only."""
    return any(isinstance(guard.test, MainRank) and guard.taken for guard in event.guards)


def used_elsewhere(trace: Trace, taken: StateDictTaken, besides: Collection[Saved] = ()) -> bool:
    """Whether what is gathered there may serve another rank, or the model itself.

    ``besides`` are writes that do not count. A helper is asked from many places.
    """
    apart = {saved.at.node for saved in besides}
    every = (one for one in trace.of(StateDictTaken) if one.at.node is taken.at.node)
    return any(_serves_others(trace, one, apart) for one in every)


def _serves_others(trace: Trace, taken: StateDictTaken, apart: Collection[cst.CSTNode]) -> bool:
    state = taken.state
    holders = set(trace.memory.holders(state))
    if any(_root(one) is state for r in trace.of(Restored) for one in options(r.state)):
        return True
    if any(not on_first(escaped) for escaped in trace.escapes(state)):
        return True
    written = (saved for saved in trace.of(Saved) if saved.at.node not in apart)
    if any(state in saved.states and not on_first(saved) for saved in written):
        return True
    return any(
        called.order > taken.order
        and called.name not in HARMLESS
        and called.at.node not in apart
        and not on_first(called)
        and any(_root(v) in holders for v in _given(called))
        for called in trace.of(Called)
    )


def _given(called: Called) -> Iterator[Value]:
    """What a call is called on and what it is given."""
    if called.receiver is not None:
        yield called.receiver
    yield from (one for v in (*called.arguments, *called.keywords.values()) for one in options(v))


def _root(value: Value) -> Value:
    while isinstance(value, Part) and not isinstance(value, StateDict):
        value = value.owner
    return value


def offloaded(trace: Trace, taken: StateDictTaken) -> Fix | None:
    """The options of a gather with `cpu_offload`: the first rank alone keeps the state, in host memory."""
    given = next(
        (c.keywords.get("options") for c in trace.calls(*GETTERS) if c.at.node is taken.at.node),
        None,
    )
    return None if given is None else switched_on(trace, given, "cpu_offload", GETTERS)
