"""Whether a model is trained, and what keeps the weights of the ranks in step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from fsdp2lint.api import (
    Backward,
    Collective,
    Either,
    Escaped,
    Event,
    Forward,
    Guard,
    Guards,
    Literal,
    Module,
    Optimizer,
    Parameters,
    Part,
    Round,
    Stepped,
    Trace,
    Value,
    Written,
    options,
    unwrapped,
)

from .origins import may_be_gradients
from .shared import overlap, together, wrapped_before

_BY_HAND = ("all_reduce", "all_gather", "broadcast", "reduce")


def kept_in_step_by_groups(
    trace: Trace, forward: Forward, model: Value, ways: Iterable[Guards]
) -> bool:
    """Whether a model is surely trained, and by nothing but ``fully_shard`` kept in step, as long as no code that cannot
    be followed holds it (:func:`unfollowed_users`).

    What wraps it where its parts are not sharded (``ways`` say where they are) does not matter.
    """
    if any(wrapped_before(trace, forward, model, "ddp", "fsdp1", where=way) for way in ways):
        return False
    if any(
        c.name.rpartition(".")[2].startswith(_BY_HAND) and may_be_gradients(trace, c)
        for c in trace.of(Collective)
    ):
        return False
    return next(trace.after(forward, Backward), None) is not None


def optimized_after(trace: Trace, event: Event, module: Value, where: Guards) -> bool:
    """Whether an optimizer steps over a module after an event, on a path that goes with some conditions."""
    return any(
        isinstance(optimizer, Optimizer)
        and together(stepped.guards, where)
        and any(overlap(trace, unwrapped(p.of), module) is not None for p in optimizer.over)
        for stepped in trace.after(event, Stepped)
        for optimizer in options(stepped.optimizer)
    )


def unfollowed_users(trace: Trace, model: Value) -> list[Event] | None:
    """Where code that cannot be followed gets a model: nowhere, at these events, or (None) nobody knows where."""
    if trace.known(model):
        return []
    users: list[Event] = list(trace.escapes(model)) or list(_escapes_of_parts(trace, model))
    memory = trace.memory
    beyond = memory.foreign | memory.lent
    if trace.truncated or not users or any(one in beyond for one in memory.holders(model)):
        return None
    return users


def _escapes_of_parts(trace: Trace, model: Value) -> Iterator[Event]:
    """Where a part of a model escapes, such as a child that a function gets which calls itself for it."""
    for gone in trace.of(Escaped):
        value = unwrapped(gone.value)
        while isinstance(value, Part) and value is not model:
            value = unwrapped(value.owner)
        if value is model:
            yield gone


def may_be_frozen(trace: Trace, layer: Value) -> bool:
    """Whether the script may have frozen a layer."""
    return next(freezing(trace, layer), None) is not None


def freezing(trace: Trace, layer: Value) -> Iterator[Event]:
    """What may freeze a layer, or a parameter of it, each where a flag that it is given says so and nothing trains the
    layer again.
    """
    switches: list[tuple[Event, Value | None, Value | None]] = [
        (called, called.receiver, called.argument(0, "requires_grad"))
        for called in trace.calls(".requires_grad_")
    ]
    switches += [
        (one, one.owner, one.value) for one in trace.of(Written) if one.name == "requires_grad"
    ]
    for event, owner, on in switches:
        if owner is not None and _touches(trace, owner, layer):
            for frozen in _switched_off(event, on):
                trained = [
                    other.guards
                    for other, of, value in switches
                    if other.order > event.order and _takes_all(trace, of, value, layer)
                ]
                if (left := _never(frozen.guards, trained)) is not None:
                    yield replace(frozen, moment=replace(frozen.moment, guards=left))


def _never(frozen: Guards, trained: Iterable[Guards]) -> Guards | None:
    """What holds where something is frozen and not trained again; None where it always is."""
    for guards in trained:
        asked = guards.since(frozen)
        if not asked:
            return None
        if len(asked) == 1:
            frozen = frozen.also(frozenset(frozenset((~g,)) for clause in asked for g in clause))
    return None if frozen.impossible else frozen


def _takes_all(trace: Trace, owner: Value | None, on: Value | None, layer: Value) -> bool:
    """Whether all parameters of a layer are trained from there on: those of a module that it is, or that holds it."""
    if isinstance(owner, Part) and owner.key == "[1]":  # `for name, p in named_parameters()`
        owner = owner.owner
    if isinstance(owner, Part) and isinstance(owner.key, Round):
        owner = owner.owner
    whole = owner.of if isinstance(owner, Parameters) else owner
    known = isinstance(whole, Module) and trace.inside(layer, whole)
    return known and (on is None or (isinstance(on, Literal) and on.value is True))


def _switched_off(event: Event, on: Value | None) -> Iterator[Event]:
    """An event that gives ``requires_grad`` a value, where that value may be false."""
    for guards, one in on.options if isinstance(on, Either) else ((event.guards, on),):
        if one is None or (isinstance(one, Literal) and one.value):
            continue
        here = event.guards.and_(guards)
        if not isinstance(one, Literal):
            here = here.also(frozenset((frozenset((Guard(one, False),)),)))
        yield replace(event, moment=replace(event.moment, guards=here))


def _touches(trace: Trace, value: Value, layer: Value) -> bool:
    """Whether a module, or a parameter, may be in or around a layer."""
    for one in options(value):
        seen: Value | None = one
        while isinstance(seen, Part) and overlap(trace, seen, layer) is None:
            seen = seen.owner
        if isinstance(seen, Parameters):
            if any(
                not isinstance(of, Module) or overlap(trace, of, layer) for of in options(seen.of)
            ):
                return True
        elif seen is not None and overlap(trace, seen, layer) is not None:
            return True
    return False
