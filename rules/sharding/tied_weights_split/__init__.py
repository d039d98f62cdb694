"""Two modules share a weight, and `fully_shard` separates them.

## What it does

Finds `a.weight = b.weight` for modules that end up in two groups of `fully_shard` (each by a call of its own, or
one by a call and the other left to the root), and the same statement after the sharded model has computed.

## Why is this bad

A group replaces the weight in its own modules only. From torch 2.12 the first forward raises ValueError; before,
each group trains a weight of its own, silently. After the first forward the statement itself has no lasting
effect: the next forward puts each module's own weight back.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
 model[2].weight = model[0].weight
-fully_shard(model[0])
+fully_shard([model[0], model[2]])
 fully_shard(model)
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a head that the constructor ties to an embedding with a group of its own.
- Found: a method that ties them.
- Not found: a head that Transformers ties.
- Not found: one parameter that two modules of the project are given.

## Fix safety

Unsafe: one call shards both in a list, in the place of the two, or where the one end has its call and the other
was left to a module around it; the weight then stays gathered from the forward of the one to that of the other.
There is no fix when the calls have other arguments, are in different blocks or in a loop, or when names are
bound anew between them. A tie that comes too late moves above the call that shards both ends.

## Known limits

Weights that a library ties (`tie_word_embeddings`) are not seen.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_validate_no_duplicate_params`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Assigned,
    Class,
    External,
    Finding,
    Fix,
    Forward,
    Instance,
    Part,
    Trace,
    Value,
    lineage,
    rule,
    unwrapped,
)

from ..._common.parts import OWN_WEIGHTS
from ..._common.shared import Shard, cases, overlap, sharded, shards, shards_before, together
from .._common.fixes_lifting import lifted
from .ties import grouped


@rule(code="FSDP214", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Ties that the groups cut."""
    for tied in trace.of(Assigned):
        other = _other_end(tied)
        if other is None or _cut_again(trace, tied):
            continue
        owner = unwrapped(tied.owner)
        said = f"`{owner.words()}.{tied.name}` and `{other.words()}.{tied.name}`"
        first, second = _group(trace, tied, owner), _group(trace, tied, other)
        if first is not None and second is not None and first.event is not second.event:
            if not together(first.guards, second.guards) or _ignores(first, second):
                continue
            alone = _guilty(trace, first, second, owner, other)
            yield Finding(
                at=alone.event,
                message=f"{said} are one weight, but `fully_shard` puts them into two groups: ValueError at "
                "the first forward (before torch 2.12 they part silently); shard both in one list",
                because=((tied, "tied here"),),
                fix=grouped(trace, first, second, (owner, other)),
            )
        elif _too_late(trace, tied, owner, other):
            yield Finding(
                at=tied,
                message=f"{said} are tied after the sharded model has computed: the next forward "
                "puts each one's own weight back; tie them before `fully_shard`",
                fix=_tied_first(trace, tied, owner, other),
            )


def _other_end(tied: Assigned) -> Value | None:
    """The module whose weight another one is given."""
    for _, value in cases(tied, tied.value):
        if isinstance(value, Part) and value.key == f".{tied.name}" and tied.name in OWN_WEIGHTS:
            other = unwrapped(value.owner)
            if other is not unwrapped(tied.owner) and not _is_missing(other):
                return other
    return None


def _is_missing(module: Value) -> bool:
    """Whether a module is looked for where no class of the project puts one: reading it raises AttributeError."""
    seen = module
    while isinstance(seen, Part) and seen.owner is not None:
        whole = seen.owner
        if isinstance(whole, Instance) and isinstance(whole.cls, Class):
            outside = [one.name for one in lineage(whole.cls) if isinstance(one, External)]
            return str(seen.key).startswith(".") and all(
                name.endswith("Mixin") or name.startswith(_PLAIN) for name in outside
            )
        seen = whole
    return False


_PLAIN = ("torch.nn.Module", "builtins.", "abc.", "typing.")


def _cut_again(trace: Trace, tied: Assigned) -> bool:
    """Whether the same attribute is given something else later."""
    return any(
        trace.precedes(tied, later)
        for later in trace.of(Assigned)
        if later.owner is tied.owner and later.name == tied.name and later.value is not tied.value
    )


def _group(trace: Trace, tied: Assigned, module: Value) -> Shard | None:
    """The first sharding, after the tie, that takes the parameters of ``module``."""
    for shard in shards(trace):
        if trace.inside(module, shard.module) and together(shard.guards, tied.guards):
            return shard if shard.order > tied.order else None
    return None


def _ignores(*both: Shard) -> bool:
    """Whether a sharding leaves parameters alone, perhaps these."""
    return any("ignored_params" in shard.event.options or shard.event.open for shard in both)


def _guilty(trace: Trace, first: Shard, second: Shard, one: Value, other: Value) -> Shard:
    """The later of two shardings, unless that is of a module around both."""
    early, late = sorted((first, second), key=lambda s: s.order)
    both = trace.inside(one, late.module) and trace.inside(other, late.module)
    return early if both else late


def _too_late(trace: Trace, tied: Assigned, one: Value, other: Value) -> bool:
    """Whether the model around both was sharded and has computed before they are tied."""
    if sharded(trace, tied, one) is None or sharded(trace, tied, other) is None:
        return False
    return any(
        forward.how == "call"
        and overlap(trace, one, forward.module) is one
        and overlap(trace, other, forward.module) is other
        and sharded(trace, forward, forward.module) is not None
        for forward in trace.before(tied, Forward)
    )


def _tied_first(trace: Trace, tied: Assigned, one: Value, other: Value) -> Fix | None:
    """The tie above the first sharding that takes the one end, when it takes the other one too."""
    before = sorted(shards_before(trace, tied), key=lambda shard: shard.order)
    taking = [[s for s in before if trace.inside(end, s.module)] for end in (one, other)]
    if not all(taking) or taking[0][0].event is not taking[1][0].event:
        return None
    return lifted(
        trace,
        tied,
        [taking[0][0].event],
        "tie the weights before they are sharded",
        "the two are one weight from the beginning, also in what ran between",
        whatever=True,
    )
