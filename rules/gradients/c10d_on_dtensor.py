"""A collective of `torch.distributed` is given a parameter or gradient of a sharded model.

## What it does

Finds `dist.all_reduce`, `broadcast`, `all_gather`, … of a parameter, its `.data`, its gradient, a reduction of one of
them, or each entry of a state dict, when the model is sharded.

## Why is this bad

Parameters and gradients of a sharded model are `DTensor`s, which know their ranks themselves; the collectives
of `torch.distributed` take plain tensors only and raise NotImplementedError ("does not have a sharding
strategy registered"). FSDP2 has reduced the gradients already; a whole value is what `full_tensor()` gives.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 model(torch.randn(4, 8)).sum().backward()
-for parameter in model.parameters():
-    dist.all_reduce(parameter.grad)
 optimizer.step()
```

## Forms

- Found: gradients that a helper function averages.
- Found: the sum of several norms.
- Found: weights that are sent to all ranks.
- Found: the values of a state dict.
- Not found: gradients that are put together first.

## Known limits

Silent while parameters may be gathered (between the forward of a root and its backward), when
`ignored_params` are given, when the script makes distributed tensors by other means too, and under a test of
what kind of tensor it is. There is no fix: a reduction that FSDP2 does anyway goes, a norm becomes
`full_tensor()`.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.html
- `torch/distributed/tensor/_dispatch.py` (operators without a sharding strategy)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Container,
    Finding,
    Part,
    Round,
    StateDict,
    StateDictTaken,
    Trace,
    Value,
    rule,
)

from .._common.meetings import asks_for_dtensor
from .._common.shared import Shard, cases, changed, of_shards, state_shard
from .._common.tensors import asks_for_kind, shard_of

_COLLECTIVES = tuple(
    f"torch.distributed.{name}"
    for name in "all_reduce broadcast reduce all_gather all_gather_into_tensor reduce_scatter "
    "reduce_scatter_tensor gather scatter all_to_all all_to_all_single send recv".split()
)
_REDUCTIONS = {f".{name}()" for name in "sum mean norm max min amax amin square pow detach".split()}
_ELEMENT = (".items()", ".values()", "[1]", ".data")
_OPERATORS = ("**", "+", "*", "/")


@rule(code="FSDP244", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Collectives over shards."""
    for called in trace.calls(*_COLLECTIVES):
        if asks_for_kind(called):
            continue
        for given in _tensors(trace, called):
            shard = _shard(trace, called, given)
            if shard is None:
                continue
            name = called.name.rpartition(".")[2]
            yield Finding(
                at=called,
                message=f"`{given.words()}` is a DTensor, and `{name}` takes plain tensors only: "
                "NotImplementedError",
                because=(shard.reason,),
            )
            break


def _tensors(trace: Trace, called: Called) -> Iterator[Value]:
    """The tensors that a collective is given, also inside lists; not what the script knows to be plain."""
    given = [
        *called.arguments,
        *(v for k, v in called.keywords.items() if k not in ("group", "op")),
    ]
    for one in given:
        for guards, value in cases(called, one):
            if any(asks_for_dtensor(g.test) and not g.taken for g in guards):
                continue
            if isinstance(value, Container):
                yield from (v for _, v in trace.memory.entries(value, called.guards))
            else:
                yield value


def _shard(trace: Trace, called: Called, value: Value, depth: int = 6) -> Shard | None:
    """The sharding of a tensor, or of one from which it is computed without leaving DTensors."""
    shard = shard_of(trace, called, value) or _of_state(trace, called, value)
    if shard is not None or depth == 0:
        return shard
    for part in _computed_from(trace, called, value):
        shard = _shard(trace, called, part, depth - 1)
        if shard is not None:
            return shard
    return None


def _of_state(trace: Trace, called: Called, value: Value) -> Shard | None:
    """The sharding of a model whose state dict is gone through, each of its entries, no test chooses among them."""
    seen: Value | None = value
    rounds = 0
    while isinstance(seen, Part):
        rounds += isinstance(seen.key, Round)
        if not isinstance(seen.key, Round) and seen.key not in _ELEMENT:
            return None
        seen = seen.owner
    if not isinstance(seen, StateDict) or not rounds or seen.kind != "model":
        return None
    taken = next((e for e in trace.of(StateDictTaken) if e.state is seen), None)
    if taken is None or any(called.guards.since(taken.guards)):
        return None
    if not of_shards(seen) or changed(trace, seen, called):
        return None
    return state_shard(trace, called, seen)


def _computed_from(trace: Trace, called: Called, value: Value) -> Iterator[Value]:
    """The tensors that a reduction, an operator or a sum is computed from."""
    if isinstance(value, Part):
        if value.operation in _REDUCTIONS:
            yield value.owner
        elif value.operation in _OPERATORS:
            yield from value.made_of
    for summed in trace.calls("builtins.sum", "torch.stack", "torch.sum", "torch.norm"):
        if summed.result is value and summed.arguments:
            terms = summed.arguments[0]
            yield terms
            if isinstance(terms, Container):
                yield from (v for _, v in trace.memory.entries(terms, called.guards))
