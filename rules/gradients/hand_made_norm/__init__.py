"""The norm of all gradients is summed over the ranks although it is that of all ranks already.

## What it does

Finds `dist.all_reduce` (a sum) of a norm of gradients of a sharded model that `full_tensor()` or
`clip_grad_norm_` has made one for all ranks.

## Why is this bad

The norm of a `DTensor` is that of all its shards, once `full_tensor()` was asked for it, and so is what
`clip_grad_norm_` returns. Code that was written for the local shards of FSDP1 (the square of the local norm,
`all_reduce`, the root) counts every gradient once for each rank: the norm comes out too large by the root of their
number, and gradients that are clipped by it become too small. On the `DTensor` itself `all_reduce` raises.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 model(torch.randn(4, 8)).sum().backward()
 norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
-square = norm**2
-dist.all_reduce(square)
-print(square.sqrt())
+print(norm)
```

## Forms

- Found: a method that adds up the squares.
- Found: a sum on one rank, of a number.
- Not found: functional collectives.
- Not found: norms that are gathered and added up.

## Fix safety

Unsafe: the number becomes smaller, and something may have been fitted to it. A loop that adds up the squares of
`p.grad.norm().full_tensor()`, the sum over the ranks and the root below it become one
`torch.nn.utils.get_total_norm(…).full_tensor()`, in the dtype of the gradients. Elsewhere the call of
`all_reduce` goes, if the norm was made in the same function and nothing else is summed with it.

## Known limits

Silent where the sum is divided by the number of ranks, where another operation than the sum is asked for, and
where local shards are taken (`p.grad.to_local()`), of which the sum is right.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
- `torch/nn/utils/clip_grad.py` (`_get_total_norm`)
- `torch/distributed/tensor/_ops/_math_ops.py` (`_NormPartial`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Clipped,
    Collective,
    Container,
    Either,
    Finding,
    Fix,
    Literal,
    Parameters,
    Part,
    Trace,
    Value,
    options,
    root,
    rule,
)

from ..._common.parts import holding_shards
from ..._common.shared import Shard
from .._common.sums import sums_over_ranks
from .norms import by_the_utility, without_sum


@rule(code="FSDP246", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Norms of all ranks that are summed once more."""
    for collective in trace.of(Collective):
        value = sums_over_ranks(trace, collective)
        shard = None if value is None else _norm_of_all(trace, value, 14)
        if value is None or shard is None:
            continue
        said = shard.module.words()
        yield Finding(
            at=collective,
            message=f"this norm is that of all shards of `{said}` already: the sum over the ranks counts every "
            "gradient once for each of them",
            because=((shard.event, f"`{said}` is sharded here"),),
            fix=_fix(trace, collective, value),
        )


def _fix(trace: Trace, collective: Collective, value: Value) -> Fix | None:
    """The sum away, if it is of nothing else whenever it is made."""
    for other in trace.of(Collective):
        if other.at.node is collective.at.node:
            summed = sums_over_ranks(trace, other)
            if summed is None or _norm_of_all(trace, summed, 14) is None:
                return None
    return by_the_utility(trace, collective) or without_sum(trace, collective, value)


def _norm_of_all(trace: Trace, value: Value, depth: int, whole: bool = False) -> Shard | None:
    """The sharding of the model over all of whose shards a value is a norm."""
    clipped = _clipped(trace, value)
    if clipped is not None:
        return clipped
    if depth == 0:
        return None
    if isinstance(value, Either):
        for one in options(value):
            found_one = _norm_of_all(trace, one, depth - 1, whole)
            if found_one is not None:
                return found_one
    if isinstance(value, Container):
        found = [_norm_of_all(trace, v, depth - 1, whole) for _, v in trace.memory.entries(value)]
        return found[0] if found and None not in found else None
    made = next((c for c in trace.calls("torch.stack", "torch.cat") if c.result is value), None)
    if made is not None and made.arguments:
        return _norm_of_all(trace, made.arguments[0], depth - 1, whole)
    if not isinstance(value, Part):
        return None
    if value.key == ".to_local()":
        return None
    if whole and value.key == ".grad":
        return _of_gradient(trace, value)
    whole = whole or value.key == ".full_tensor()"
    for one in value.made_of:
        if not isinstance(one, Literal):
            found_one = _norm_of_all(trace, one, depth - 1, whole)
            if found_one is not None:
                return found_one
    return None


def _clipped(trace: Trace, value: Value) -> Shard | None:
    """The sharding of a model of whose gradients `clip_grad_norm_` returned the norm."""
    for called in trace.calls("torch.nn.utils.clip_grad_norm_"):
        if called.result is not value:
            continue
        for event in trace.of(Clipped):
            if event.at.node is called.at.node:
                for parameters in event.parameters:
                    found = holding_shards(trace, event, parameters.of)
                    if found is not None:
                        return found[0]
    return None


def _of_gradient(trace: Trace, value: Part) -> Shard | None:
    """The sharding of the module whose gradient a value is."""
    seen = root(value)
    last = trace.events[-1]
    if isinstance(seen, Parameters):
        found = holding_shards(trace, last, seen.of)
        return None if found is None else found[0]
    return None
