"""What is taken for the whole state because no run asks FSDP1 for another kind."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from fsdp2lint.api import Called, Event, Program, StateDict, Trace, Value, options

from .states_asked import FULL, SETTER, asked, kind_of

Events = Iterable[tuple[Trace, Event]]


def assumed(program: Program, events: Events) -> str:
    """What to say of states that a setting in unresolved code may want of another kind; empty if none does."""
    unseen = [(trace, event) for trace, event in events if _may_be_set_elsewhere(trace, event)]
    if not unseen:
        return ""
    setters = (c for _, c in program.of(Called) if c.name == SETTER and kind_of(c) != FULL)
    places = sorted({PurePath(setter.at.source.path).name for setter in setters})
    if not places:
        return ""
    said = f"`set_state_dict_type` in {' and '.join(places)} may ask for another kind"
    return f"; it is taken to be the whole, FSDP1's default: {said}"


def _may_be_set_elsewhere(trace: Trace, event: Event) -> bool:
    model = _model_of(trace, event)
    if asked(trace, event).by is not None:
        return False
    return model is None or not all(trace.known(one) for one in options(model))


def _model_of(trace: Trace, event: Event) -> Value | None:
    """The model that a state is of, also where FSDP1's function is given it beside the optimizer."""
    if isinstance(event, Called):
        return _given(event)
    here = (called for called in trace.of(Called) if called.at.node is event.at.node)
    given = next((_given(called) for called in here if called.receiver is None), None)
    state = getattr(event, "state", None)
    return given or (state.of if isinstance(state, StateDict) and state.kind == "model" else None)


def _given(called: Called) -> Value | None:
    return called.argument(0, "model")
