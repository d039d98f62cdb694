"""The norms of all gradients that torch returns."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp2lint.api import (
    Called,
    Clipped,
    External,
    Literal,
    Parameters,
    ParametersUsed,
    Trace,
    Value,
    once,
)

from .parts import holding_shards
from .shared import Shard

_NORMS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.get_total_norm")
_REDUCED = (2, 10)
"""The first release whose total norm is reduced, unless it is the infinity norm."""
_OLDEST = (2, 6)


@dataclass(frozen=True, slots=True)
class Norm:
    """The norm of all gradients of a sharded model."""

    made: Called
    shard: Shard
    infinite: bool


@once
def norms(trace: Trace) -> dict[Value, Norm]:
    """The norms that torch returns, of gradients that surely are shards."""
    taken: dict[object, list[Parameters]] = {}
    uses: list[Clipped | ParametersUsed] = [*trace.of(Clipped), *trace.of(ParametersUsed)]
    for used in uses:
        taken.setdefault(used.at.node, []).extend(used.parameters)
    found: dict[Value, Norm] = {}
    for called in trace.calls(*_NORMS):
        for parameters in taken.get(called.at.node, ()):
            here = holding_shards(trace, called, parameters.of)
            if here is None or "ignored_params" in here[0].event.options:
                continue
            if parameters.taken is None or parameters.taken > here[0].order:
                found.setdefault(called.result, Norm(called, here[0], _is_infinite(called)))
    return found


def _is_infinite(called: Called) -> bool:
    """Whether a norm is the infinity norm."""
    position = 2 if called.name.endswith("clip_grad_norm_") else 1
    asked = called.argument(position, "norm_type")
    if isinstance(asked, Literal):
        return str(asked.value).strip("+") == "inf"
    if isinstance(asked, External):
        return asked.name in ("math.inf", "torch.inf", "numpy.inf")
    return asked is not None and asked.words() == "float('inf')"


def is_partial(trace: Trace, norm: Norm) -> bool:
    """Whether a norm still is that of each rank's shards with the oldest torch of the project."""
    return norm.infinite or (trace.target or _OLDEST) < _REDUCED
