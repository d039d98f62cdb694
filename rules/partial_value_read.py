"""A number is read from a reduction of sharded parameters: each rank gets its own.

## What it does

Finds `.item()`, `float()` and `int()` of `sum`, `mean`, `norm`, `max`, `min`, `any`, … of a parameter or gradient of a
sharded model.

## Why is this bad

A reduction over a sharded DTensor gives a *partial* DTensor, and reading it gives the number of this rank's shard:
nothing raises, no rank has the right one, and decisions made by it differ between ranks. `.full_tensor()`
reduces over the ranks first; every rank must call it.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
model(torch.randn(4, 8)).sum().backward()
print(model.weight.grad.norm().item())
```

## Use instead

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
model(torch.randn(4, 8)).sum().backward()
print(model.weight.grad.norm().full_tensor().item())
```

## Fix safety

Unsafe: `full_tensor()` communicates, so every rank must get there; the fix is left out under a test of the rank.

## Known limits

Silent when the function that reads, its caller, or what these call reduces something over the ranks afterwards. Printing a
partial tensor without reading a number is not reported.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.html (`Partial`, `full_tensor`)
- `torch/distributed/tensor/_ops/_math_ops.py` (which reductions stay partial)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Called,
    Event,
    Finding,
    Fix,
    Forward,
    Part,
    Replace,
    Resharded,
    Trace,
    Unsharded,
    Value,
    rank_dependent,
    rule,
)

from ._fixes import call_of
from ._parts import parameter_of
from ._shared import Shard, overlap, sharded

_PARTIAL = "sum mean norm max min amax amin any all prod count_nonzero".split()
_METHODS = tuple(f".{name}" for name in _PARTIAL)
_FUNCTIONS = (
    *(f"torch.{name}" for name in _PARTIAL),
    "torch.linalg.vector_norm",
    "torch.linalg.norm",
)
_NUMBERS = ("builtins.float", "builtins.int")
_BY_HAND = (
    *(
        f"torch.distributed.{name}"
        for name in ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather")
    ),
    ".gather",
    ".gather_for_metrics",
    ".reduce",
)


@rule(code="FSDP218", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Numbers of one rank's shard."""
    reductions = {c.result: c for c in trace.calls(*_METHODS, *_FUNCTIONS) if _of_all(c)}
    for read in trace.calls(".item", *_NUMBERS) if reductions else ():
        value = read.receiver if read.name == ".item" else read.argument(0, "x")
        reduction = reductions.get(_below(value)) if value is not None else None
        if reduction is None:
            continue
        shard = _shard(trace, reduction)
        if shard is None or _by_hand(trace, read):
            continue
        name = reduction.name.rpartition(".")[2]
        yield Finding(
            at=read,
            message=f"this number is the `{name}` of one rank's shard, each rank reads another one; call "
            "`full_tensor()` before it is read, on every rank",
            because=((shard.event, f"`{shard.module.words()}` is sharded here"),),
            fix=_whole(read),
        )


def _of_all(called: Called) -> bool:
    """Whether a reduction is over all elements, not along a dimension."""
    if called.open or "dim" in called.keywords:
        return False
    given = len(called.arguments) - (called.receiver is None)
    return given == 0 or (given == 1 and called.name.endswith("norm"))


def _below(value: Value) -> Value:
    """Without what changes nothing between a reduction and the reading."""
    while isinstance(value, Part) and value.key in ((".detach()",), (".clone()",), ".data"):
        value = value.owner
    return value


def _shard(trace: Trace, reduction: Called) -> Shard | None:
    """The sharding of the module whose parameter or gradient is reduced."""
    tensor = reduction.argument(0, "input") if reduction.receiver is None else reduction.receiver
    found = None if tensor is None else parameter_of(tensor)
    if found is None:
        return None
    here = sharded(trace, reduction, found.module)
    if here is None or "ignored_params" in here[0].event.options:
        return None
    shard = here[0]
    if found.taken is not None and found.taken < shard.order:
        return None
    return shard if found.gradient or not _gathered(trace, reduction, shard) else None


def _gathered(trace: Trace, event: Event, shard: Shard) -> bool:
    """Whether parameters may be whole here: the root keeps them so between forward and backward."""
    gathering = [(f.order, f.module) for f in trace.before(event, Forward)]
    gathering += [(u.order, u.module) for u in trace.before(event, Unsharded)]
    orders = [o for o, m in gathering if overlap(trace, m, shard.module) is not None]
    freed = [e.order for e in trace.before(event, Backward)]
    freed += [e.order for e in trace.before(event, Resharded)]
    return max(orders, default=-1) > max(freed, default=-1)


def _by_hand(trace: Trace, read: Called) -> bool:
    """Whether the caller of the function that reads reduces something over the ranks afterwards."""
    caller = read.moment.inside[:-1]
    return any(
        called.moment.inside[: len(caller)] == caller
        for called in trace.calls(*_BY_HAND)
        if called.order > read.order
    )


def _whole(read: Called) -> Fix | None:
    """``full_tensor()`` in front of the reading."""
    call = call_of(read.at)
    if call is None or any(rank_dependent(g.test) for g in read.guards):
        return None
    value = call.func.value if isinstance(call.func, cst.Attribute) else call.args[0].value
    if not isinstance(value, cst.Call):
        return None
    edit = Replace(read.at.source, value, f"{read.at.source.code(value)}.full_tensor()")
    return Fix("read the whole value", (edit,), "unsafe", "every rank must get here")
