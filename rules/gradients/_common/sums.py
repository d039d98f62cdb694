"""Numbers that are summed over all ranks by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp2lint.api import (
    Augmented,
    Called,
    Collective,
    External,
    Trace,
    Value,
    of_world_size,
    once,
)

if TYPE_CHECKING:
    from libcst import CSTNode

_REDUCE = ("torch.distributed.all_reduce", "torch.distributed.reduce")
_MAKING = ("torch.tensor", "torch.as_tensor")


def sums_over_ranks(trace: Trace, collective: Collective) -> Value | None:
    """What a collective sums over the ranks; None when it does something else, or a mean is made of it."""
    if collective.name not in _REDUCE or collective.about is None:
        return None
    called = _reductions(trace).get(collective.at.node)
    if called is None or not _is_sum(called) or _divided(trace, collective.about, collective.order):
        return None
    made = next((c for c in trace.calls(*_MAKING) if c.result is collective.about), None)
    if made is None:
        return collective.about
    return made.arguments[0] if made.arguments else None


@once
def _reductions(trace: Trace) -> dict[CSTNode, Called]:
    """The first call at each node that reduces something over the ranks."""
    found: dict[CSTNode, Called] = {}
    for called in trace.calls(*_REDUCE):
        found.setdefault(called.at.node, called)
    return found


def _is_sum(called: Called) -> bool:
    position = 1 if called.name.endswith("all_reduce") else 2
    given = called.argument(position, "op")
    return not called.open and (
        given is None or (isinstance(given, External) and given.name.endswith("ReduceOp.SUM"))
    )


def _divided(trace: Trace, value: Value, order: int) -> bool:
    """Whether something is computed of a value with the number of ranks."""
    return any(at >= order and any(v is value for v in of) for at, of in _divisions(trace))


@once
def _divisions(trace: Trace) -> tuple[tuple[int, tuple[Value, ...]], ...]:
    """The values of which something is computed with the number of ranks, or which are divided, and when."""
    found: list[tuple[int, tuple[Value, ...]]] = []
    for event in trace.events:
        if isinstance(event, Augmented) and event.symbol == "/":
            # whatever it is divided by, the sum itself is not what is wanted
            found.append((event.order, (event.value,)))
        sides = [getattr(event, name, None) for name in ("left", "right", "value", "receiver")]
        if isinstance(event, Called):
            sides += event.arguments
        values = tuple(v for v in sides if isinstance(v, Value))
        if any(of_world_size(v) for v in values):
            found.append((event.order, values))
    return tuple(found)
