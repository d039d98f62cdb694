"""The fix of a write that reaches no shard: it comes before the sharding."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import libcst as cst

from fsdp2lint.api import Event, Fix, Sharded, Trace, Value, dotted

from ..._common.fixes_effects import Effect, does_only, holds
from ..._common.shared import overlap, shards_before
from ..._common.tensors import tensor_of

_GRAD_MODES = ("torch.no_grad", "torch.autograd.no_grad", "torch.autograd.grad_mode.no_grad")
_SEEDS = ("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "torch.seed")
_OF_SHARDS = frozenset(
    "to_local full_tensor redistribute distribute_tensor from_local device_mesh placements _local_tensor".split()
)
"""Names that only the code for a `DTensor` uses."""


def written_before(
    trace: Trace, event: Event, tensor: Value, nodes: AbstractSet[cst.CSTNode]
) -> Fix | None:
    """Move a write above all shardings that hold its tensor; ``nodes`` are all writes that are lost."""
    found = tensor_of(trace, tensor)
    if found is None:
        return None
    asked = [
        s.event
        for s in shards_before(trace, event)
        if overlap(trace, found.module, s.module) is not None
    ]
    effect = Effect.among(event, asked)
    if effect is None or effect.read() & _OF_SHARDS:
        return None
    modes = {called.at.node for called in trace.calls(*_GRAD_MODES)}
    if not effect.is_only(nodes | modes) or _seeded(trace, effect):
        return None

    def shards(one: cst.CSTNode) -> bool:
        calls = {e.at.node for e in trace.of(Sharded)}
        return any(does_only(one, e, calls) for e in asked if holds(one, e))

    def shards_in_place(one: cst.CSTNode) -> bool:
        return _binds_the_same(one, asked)

    if effect.disturbed(apart=shards_in_place) or effect.hands_over(apart=shards):
        return None
    return effect.above("write before the model is sharded", "each rank writes for itself then")


def _seeded(trace: Trace, effect: Effect) -> bool:
    """Whether random numbers begin anew between."""
    return any(holds(one, c) for c in trace.calls(*_SEEDS) for one in effect.between)


def _binds_the_same(line: cst.CSTNode, asked: Sequence[Sharded]) -> bool:
    """Whether a statement is `model = fully_shard(model)`: the name goes on to mean the same object."""
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    if not isinstance(small, cst.Assign) or not isinstance(small.value, cst.Call):
        return False
    if all(e.at.node is not small.value for e in asked) or not small.value.args:
        return False
    first = dotted(small.value.args[0].value)
    return bool(first) and all(dotted(t.target) == first for t in small.targets)
