"""Who uses a state dict, and what FSDP1 has to do with whom it was taken of."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fsdp2lint.api import (
    Called,
    Class,
    Event,
    External,
    Guards,
    Literal,
    MainRank,
    Module,
    Optimizer,
    Program,
    Restored,
    Saved,
    StateDict,
    Trace,
    Value,
    Wrapped,
    Wrapping,
    lineage,
    options,
    unwrapped,
    wrapper,
)

from .states_asked import FSDP1, context_of, setter_of

MIXED = "the model is sharded in some runs only"
NEW_NAMES = ("unwrapped", "inner_model")
"""What a model is called that has to be asked about and that the script computes in place."""


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


def is_filled(trace: Trace, state: Value) -> bool:
    """Whether other tensors are put into a state dict: those of a file or of another one, which are whole then."""
    put_in = (
        state in options(c.receiver) for c in trace.calls(".update") if c.receiver is not None
    )
    return any(True for _ in trace.memory.entries(state)) or any(put_in)


def in_groups(trace: Trace, model: Value) -> bool:
    """Whether a model is surely wrapped for a process group that the script names: not for all ranks."""
    of = {unwrapped(one) for one in options(model)}
    given = [
        options(e.options["process_group"])
        for e in trace.of(Wrapping)
        if e.by == "fsdp1" and unwrapped(e.module) in of and "process_group" in e.options
    ]
    return any(groups and not any(_for_all(one) for one in groups) for groups in given)


def wrapped_for_all(trace: Trace, model: Value) -> bool | None:
    """Whether a model is surely wrapped for all ranks, its parameters on their own devices; None where no wrapping is found."""
    of = {unwrapped(one) for one in options(model)}
    sites = {e.at.node for e in trace.of(Wrapping) if e.by == "fsdp1" and unwrapped(e.module) in of}
    made = [
        called for called in trace.calls(FSDP1) if called.at.node in sites and _may_wrap(called, of)
    ]
    given = [called.argument(*where) for called in made for where in _ELSEWHERE]
    if not sites:
        return None
    if any(called.open for called in made):
        return False
    return all(one is None or all(_for_all(group) for group in options(one)) for one in given)


def _may_wrap(called: Called, models: set[Value]) -> bool:
    """Whether a call of FSDP1 is given one of the models: a function of the script may wrap others by it too."""
    given = called.argument(0, "module")
    return given is None or any(unwrapped(one) in models for one in options(given))


_ELSEWHERE = ((1, "process_group"), (3, "cpu_offload"), (15, "device_mesh"))
"""What puts parameters on some ranks only, or off the device that the ranks talk by."""


def _for_all(group: Value) -> bool:
    """Whether a process group is that of all ranks."""
    if isinstance(group, Literal):
        return group.value is None
    return isinstance(group, External) and group.name.endswith("group.WORLD")


def wrappers_of(trace: Trace, event: Event, value: Value) -> set[str]:
    """What may be around a model at ``event``: where ``state_dict_type`` holds for it in every run, it is FSDP1.

    Unless the whole run shows that it is a plain module, beside the one that the setting is for.
    """
    if is_bare(trace, event, value):
        return {"plain"}
    found = {wrapper(one) for one in options(value)}
    by = context_of(trace, event) or setter_of(trace, event, value)
    if by is None or ("fsdp1" in found and not event.guards.implies(by.guards)):
        return found
    return {"fsdp1"}


def is_bare(trace: Trace, event: Event, value: Value) -> bool:
    """Whether a model is resolved, and neither it nor anything that it is part of or made of is wrapped."""
    found = options(value)
    if not all(isinstance(one, Module) and trace.known(one) for one in found):
        return False
    wrapped = [w for w in trace.before(event, Wrapping) if w.by == "fsdp1"]
    return not any(
        trace.concerns(w, one) or trace.inside(one, w.module) or trace.inside(w.module, one)
        for w in wrapped
        for one in found
    )


def comes_otherwise(
    program: Program, call: cst.CSTNode, events: Sequence[tuple[Trace, Event, Value]]
) -> bool:
    """Whether what a call that FSDP1's models come to is asked of may be none of them in some runs.

    It may be DDP's, or an object of the script's own that is no module. Or nothing but an open
    ``state_dict_type`` says that it is FSDP1's, and the call is made outside of one too.
    """
    if any("ddp" in wrappers_of(*one) for one in events):
        return True
    if call in program.derived(_asked_of_objects):
        return True
    presumed = any(
        context_of(trace, event) is not None and "fsdp1" not in {wrapper(o) for o in options(value)}
        for trace, event, value in events
    )
    return presumed and any("fsdp1" not in wrappers_of(*one) for one in events)


def _asked_of_objects(program: Program) -> frozenset[cst.CSTNode]:
    """The calls that lead into a ``state_dict`` or ``load_state_dict`` of a class that makes no modules."""
    found: set[cst.CSTNode] = set()
    for trace in program.traces:
        for event in trace:
            running = zip(reversed(event.calls), reversed(event.moment.inside), strict=False)
            for site, function in running:
                if function.name in ("state_dict", "load_state_dict") and function.home is not None:
                    if all(is_plain(cls) for cls in lineage(function.home)):
                        found.add(site.node)
    return frozenset(found)


def is_plain(cls: Value) -> bool:
    """Whether a class is the project's own, or makes no more than an object."""
    return isinstance(cls, Class) or getattr(cls, "name", "") in ("builtins.object", "abc.ABC")


def is_compiled(trace: Trace, event: Event, model: Value) -> bool:
    """Whether ``torch.compile`` may have put a module of its own around a model before ``event``."""
    return any(
        isinstance(wrapping.result, Wrapped)
        and wrapping.by == wrapping.result.by == "compile"
        and trace.concerns(wrapping, model)
        for wrapping in trace.before(event, Wrapping)
    )


def fsdp1_models_of(trace: Trace, optimizer: Value, at: Event) -> list[Value]:
    """The models whose parameters an optimizer holds and that FSDP1 may wrap in the runs that come to an event."""
    wrapped = [
        e for e in trace.of(Wrapping) if e.by == "fsdp1" and not e.guards.excludes(at.guards)
    ]
    found: list[Value] = []
    for one in options(optimizer):
        for parameters in one.over if isinstance(one, Optimizer) else ():
            for of in options(parameters.of):
                found += [e.result for e in wrapped if unwrapped(e.module) is unwrapped(of)]
    return list(dict.fromkeys(found))
