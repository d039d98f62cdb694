"""Whether a model is trained, and what keeps the weights of the ranks in step."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp2lint.api import Backward, Collective, Forward, Guards, Parameters, Part, Trace, Value

from .origins import may_be_gradients
from .shared import wrapped_before

_BY_HAND = ("all_reduce", "all_gather", "broadcast", "reduce")


def kept_in_step_by_groups(
    trace: Trace, forward: Forward, model: Value, ways: Iterable[Guards]
) -> bool:
    """Whether a model is surely trained, and by nothing but ``fully_shard`` kept in step.

    What wraps it where its parts are not sharded (``ways`` say where they are) does not matter.
    """
    if not trace.known(model):
        return False
    if any(wrapped_before(trace, forward, model, "ddp", "fsdp1", where=way) for way in ways):
        return False
    if any(
        c.name.rpartition(".")[2].startswith(_BY_HAND) and may_be_gradients(trace, c)
        for c in trace.of(Collective)
    ):
        return False
    return next(trace.after(forward, Backward), None) is not None


def may_be_frozen(trace: Trace, layer: Value) -> bool:
    """Whether the script may have frozen a layer."""
    for called in trace.calls(".requires_grad_"):
        if called.receiver is not None and trace.inside(layer, called.receiver):
            return True
    return any(
        any(isinstance(key, str) and "requires_grad" in key for key in written)
        and _of_parameters(owner)
        for owner, written in trace.memory.fields.items()
    )


def _of_parameters(value: Value | None) -> bool:
    while value is not None:
        if isinstance(value, Parameters):
            return True
        value = value.owner if isinstance(value, Part) else None
    return False
