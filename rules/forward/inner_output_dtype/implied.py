"""Outputs whose dtype no policy names: an inner module gives what it computes in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fsdp2lint.api import (
    Class,
    Finding,
    Literal,
    Module,
    Part,
    Returned,
    Trace,
    Value,
    lineage,
    options,
    unwrapped,
)

from ..._common.policies import LOW, dtype_of, policy_of
from ..._common.shared import Shard, class_name, shards
from ..._common.walks import reached, walk_of

_KEEPING = tuple(
    f"torch.nn.{name}" for name in ("LayerNorm", "RMSNorm", "GroupNorm", "Linear", "Embedding")
)
"""Layers whose output has the dtype of their weight."""
_CASTS = re.compile(r"\.(to|type|half|double)\(|dtype|float16|autocast")


def implied_outputs(trace: Trace, strict: Sequence[str]) -> Iterator[Finding]:
    """Modules that compute in float32 because their policy says so, before a layer in low precision."""
    groups = _groups(trace)
    if groups is None:
        return
    returned = trace.of(Returned)
    for inner in returned:
        module = unwrapped(inner.module)
        shard = _innermost(trace, groups, module)
        if shard is None or not _computes_in_float32(shard, inner) or inner.result in inner.given:
            continue
        if any(trace.inside(other, module) for other in _others(groups, module)):
            continue  # a part of it may give another dtype
        for taken in trace.after(inner, Returned):
            layer = unwrapped(taken.module)
            if class_name(layer) not in strict or inner.result not in taken.given:
                continue
            outer = _innermost(trace, groups, layer)
            lower = None if outer is None else dtype_of(policy_of(outer), "param_dtype")
            if outer is None or outer is shard or lower not in LOW or _autocasts(taken):
                continue
            if any(_gives(r, groups[outer], inner.result) for r in trace.before(taken, Returned)):
                continue  # it has left the group, and comes back cast
            yield Finding(
                at=shard.event,
                message=f"`{module.words()}` computes in `torch.float32` and gives that, and `{layer.words()}`, a layer "
                f"in `{lower}`, computes with it: give the inner policy `output_dtype={lower}`",
                because=(
                    (outer.event, "the layers around it are sharded here"),
                    (taken, "this layer computes with it"),
                ),
            )
            return


def _groups(trace: Trace) -> dict[Shard, list[Value]] | None:
    """The modules that each sharding makes a group of; None where that is not known."""
    found: dict[Shard, list[Value]] = {}
    for shard in shards(trace):
        walk = walk_of(trace, shard)
        if walk is not None:
            found[shard] = list(reached(trace, walk))
        elif isinstance(shard.module, Part):
            return None
        else:
            found[shard] = [shard.module]
    return found


def _innermost(trace: Trace, groups: dict[Shard, list[Value]], layer: Value) -> Shard | None:
    """The sharding whose group a layer belongs to."""
    around = [
        (module, shard)
        for shard, modules in groups.items()
        for module in modules
        if trace.inside(layer, module)
    ]
    for module, shard in around:
        if all(trace.inside(module, other) for other, _ in around):
            return shard
    return None


def _others(groups: dict[Shard, list[Value]], module: Value) -> Iterator[Value]:
    return (one for modules in groups.values() for one in modules if one is not module)


def _computes_in_float32(shard: Shard, returned: Returned) -> bool:
    """Whether a module surely gives float32: its inputs and its weights are cast to it, and it casts nothing itself."""
    policy, module = policy_of(shard), unwrapped(returned.module)
    if policy is None or dtype_of(policy, "param_dtype") != "torch.float32":
        return False
    casting = policy.part(".cast_forward_inputs")
    if isinstance(casting, Literal) and casting.value is False:
        return False
    if dtype_of(policy, "output_dtype") is not None:
        return False
    if class_name(module) in _KEEPING:
        return True
    if not isinstance(module, Module) or not isinstance(returned.result, Part):
        return False  # what calls that are not followed give may have any dtype
    own = [cls for cls in lineage(module.cls) if isinstance(cls, Class)]
    return bool(own) and not any(_CASTS.search(cls.scope.source.code(cls.node)) for cls in own)


def _autocasts(taken: Returned) -> bool:
    return any("autocast" in class_name(context) for context in taken.within)


def _gives(returned: Returned, modules: list[Value], result: Value) -> bool:
    return unwrapped(returned.module) in modules and result in options(returned.result)
