"""Who uses a state dict, and what FSDP1 has to do with whom it was taken of."""

from __future__ import annotations

from typing import Literal as Among

from fsdp2lint.api import (
    Event,
    External,
    Guards,
    Literal,
    MainRank,
    Module,
    Optimizer,
    Restored,
    Saved,
    StateDict,
    Trace,
    Value,
    Wrapped,
    Wrapping,
    options,
    unwrapped,
)

from ._states_asked import context_of, setter_of

Wrapper = Among["fsdp1", "ddp", "none", "unknown"]


def on_first_rank(guards: Guards) -> bool:
    """Whether only the first rank of all comes where ``guards`` hold."""
    return any(
        isinstance(g.test, MainRank) and g.test.scope == "global" and g.taken for g in guards
    )


def for_first_rank_only(trace: Trace, state: StateDict) -> bool:
    """Whether a state is surely saved by the first rank, and used by no other."""
    saves = [s for s in trace.of(Saved) if state in s.states]
    uses: list[Event] = [*saves, *trace.escapes(state)]
    if any(state in options(r.state) for r in trace.of(Restored)):
        return False
    return bool(saves) and all(on_first_rank(use.guards) for use in uses)


def in_groups(trace: Trace, model: Value) -> bool:
    """Whether a model is surely wrapped for a process group that the script names: not for all ranks."""
    of = {unwrapped(one) for one in options(model)}
    given = [
        options(e.options["process_group"])
        for e in trace.of(Wrapping)
        if e.by == "fsdp1" and unwrapped(e.module) in of and "process_group" in e.options
    ]
    return any(groups and not any(_for_all(one) for one in groups) for groups in given)


def _for_all(group: Value) -> bool:
    """Whether a process group is that of all ranks."""
    if isinstance(group, Literal):
        return group.value is None
    return isinstance(group, External) and group.name.endswith("group.WORLD")


def wrappers_of(trace: Trace, event: Event, value: Value) -> set[Wrapper]:
    """What may be around a model at ``event``: where ``state_dict_type`` holds for it, it is FSDP1."""
    if context_of(trace, event) is not None or setter_of(trace, event, value) is not None:
        return {"fsdp1"}
    return {_wrapper(one) for one in options(value)}


def _wrapper(value: Value) -> Wrapper:
    while isinstance(value, Wrapped):
        if value.by == "fsdp1":
            return "fsdp1"
        if value.by == "ddp":
            return "ddp"
        value = value.of
    return "none" if isinstance(value, Module) else "unknown"


def is_compiled(trace: Trace, event: Event, model: Value) -> bool:
    """Whether ``torch.compile`` may have put a module of its own around a model before ``event``."""
    return any(
        isinstance(wrapping.result, Wrapped)
        and wrapping.by == wrapping.result.by == "compile"
        and trace.concerns(wrapping, model)
        for wrapping in trace.before(event, Wrapping)
    )


def fsdp1_models_of(trace: Trace, optimizer: Value) -> list[Value]:
    """The models that FSDP1 wraps whose parameters an optimizer holds."""
    wrapped = [e for e in trace.of(Wrapping) if e.by == "fsdp1"]
    found: list[Value] = []
    for one in options(optimizer):
        for parameters in one.over if isinstance(one, Optimizer) else ():
            for of in options(parameters.of):
                found += [e.result for e in wrapped if unwrapped(e.module) is unwrapped(of)]
    return list(dict.fromkeys(found))
