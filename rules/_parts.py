"""Modules as parts of others: what is sharded inside, what came later, what is frozen."""

from __future__ import annotations

from fsdp2lint.api import (
    Called,
    Event,
    Guards,
    Literal,
    Parameters,
    Part,
    Trace,
    Value,
    unwrapped,
)

from ._shared import (
    Shard,
    has_parameters,
    hung_later,
    overlap,
    parts_of,
    shards,
    shards_before,
    together,
    told_apart,
)


def shard_within(trace: Trace, event: Event, module: Value, guards: Guards) -> Shard | None:
    """A sharding before ``event`` of ``module`` itself or of one of its submodules."""
    whole = unwrapped(module)
    if told_apart(guards, whole):
        return None
    for shard in shards_before(trace, event):
        if trace.inside(shard.module, whole) and together(shard.guards, guards):
            if shard.module is whole or not hung_later(trace, event, shard.module):
                return shard
    return None


def loose(trace: Trace, module: Value, shard: Shard) -> bool:
    """Whether ``module`` holds a layer that was built after ``shard`` and that no sharding took since."""
    whole = below(trace, module)
    return any(
        called.order > shard.order
        and called.result in whole
        and has_parameters(trace, called.result, 0)
        and not _taken(trace, called)
        and not frozen(trace, called.result)
        for called in trace.of(Called)
    )


def _taken(trace: Trace, built: Called) -> bool:
    return any(
        s.order > built.order and trace.inside(built.result, s.module) for s in shards(trace)
    )


def below(trace: Trace, module: Value) -> list[Value]:
    """A module and all submodules that the script has given to it."""
    found: list[Value] = []
    todo = [unwrapped(module)]
    while todo:
        one = todo.pop()
        if one not in found:
            found.append(one)
            todo.extend(parts_of(trace, one))
    return found


def frozen(trace: Trace, module: Value) -> bool:
    """Whether the script switches the gradients of ``module``, or of something in or around it, off."""
    for called in trace.calls(".requires_grad_"):
        on = called.argument(0, "requires_grad")
        if isinstance(on, Literal) and not on.value and _about(trace, called.receiver, module):
            return True
    return any(
        ".requires_grad" in written and _about(trace, owner, module)
        for owner, written in trace.memory.fields.items()
    )


def _about(trace: Trace, value: Value | None, module: Value) -> bool:
    """Whether a module, or a parameter of a module, is one in or around ``module``."""
    while isinstance(value, Part) and overlap(trace, value, module) is None:
        value = value.owner
    if isinstance(value, Parameters):
        value = value.of
    return value is not None and overlap(trace, value, module) is not None
