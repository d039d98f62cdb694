"""Parameters of a sharded model are counted once for each rank.

## What it does

Finds the sum of `p.numel()` over the parameters of a sharded model that is multiplied by the number of ranks, or
summed over the ranks by `dist.all_reduce`.

## Why is this bad

`numel()`, like `shape`, of a parameter that `fully_shard` has made a `DTensor` is that of the whole parameter, on
every rank. FSDP1's flat parameters had only the part of their rank, and there the sum had to be made over all
ranks. What is printed now is too large by the number of ranks; learning rates, budgets and tables computed from
it are wrong with it.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-count = sum(p.numel() for p in model.parameters()) * dist.get_world_size()
+count = sum(p.numel() for p in model.parameters())
```

## Forms

Found: a helper function that counts in a loop.

```python
def count(model):
    total = 0
    for p in model.parameters():
        total += p.numel()
    return total * dist.get_world_size()


dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
print(f"{count(model) / 1e6:.1f}M parameters")
```

Found: a sum over the ranks, and the number of ranks from the environment.

```python
import os

import torch

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
total = torch.tensor(sum(p.numel() for p in model.parameters() if p.requires_grad))
dist.all_reduce(total)
again = sum(map(lambda p: p.nelement(), model.parameters())) * int(os.environ["WORLD_SIZE"])
```

Not found: a product of shapes.

```python
import math

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
total = sum(math.prod(p.shape) for p in model.parameters()) * dist.get_world_size()
```

Not found: the size of a mesh.

```python
dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
total = sum(p.numel() for p in model.parameters()) * mesh.size()
```

## Fix safety

Unsafe: the factor or the sum over the ranks goes, also for runs that shard nothing, where it was as wrong. There is no
fix where the result of the collective is used (`async_op=True`), or where a statement has several products.

## Known limits

Silent where the product goes on being multiplied (`6 * count * tokens * ranks` is an amount of work), where the
local shards are counted (`p.to_local().numel()`), and where parameters are ignored by `fully_shard`. Filters that
ask for `p.ndim` or `p.shape` are not judged: they mean what they say again.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`to_sharded_dtensor`)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

import libcst as cst

from fsdp2lint.api import (
    Collective,
    Container,
    Event,
    Finding,
    Fix,
    Layout,
    Literal,
    Operated,
    Parameters,
    Part,
    Remove,
    Round,
    Source,
    Splice,
    Trace,
    Value,
    of_world_size,
    rule,
    walk,
)

from .._common.fixes import stands_alone
from .._common.shared import Shard, sharded
from ._common.sums import sums_over_ranks

_NUMBERS = ("+", "sum", "/", "//", "int", "float")


@rule(code="FSDP247", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Counts that grow with the number of ranks."""
    for event, value, how in _scaled(trace):
        counted = _counted(trace, value, 12)
        shard = None if counted is None else _shard_of(trace, event, counted)
        if shard is None:
            continue
        said = shard.module.words()
        yield Finding(
            at=event,
            message=f"the parameters of the sharded `{said}` are {how}: `numel()` is that of the whole "
            "parameter on every rank, and the count is too large by the number of ranks",
            because=((shard.event, f"`{said}` is sharded here"),),
            fix=_counted_once(event),
        )


def _counted_once(event: Event) -> Fix | None:
    """Without the factor, or without the sum over the ranks."""
    source, node = event.at.source, event.at.node
    layout = Layout.of(source)
    if not isinstance(event, Operated):
        statement = stands_alone(event.at)
        return None if statement is None else _without(source, statement, "sum over the ranks")
    small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else node
    if isinstance(small, cst.AugAssign):
        return _without(source, small, "factor")
    products = [n for n in walk(node, into=False) if _is_product(n)]
    if len(products) != 1:
        return None
    kept = products[0].left if _is_world_size(event.right) else products[0].right
    start, end = layout.whole(products[0])
    edit = Splice(source, start, end, source.code(kept))
    return Fix("count without the factor", (edit,), "unsafe", _NOTE)


def _without(source: Source, statement: cst.CSTNode, what: str) -> Fix:
    """The statement goes, with the comment that explains it."""
    gone = _all_that_goes(Layout.of(source), statement)
    return Fix(f"count without the {what}", (Remove(source, gone, comments=True),), "unsafe", _NOTE)


_NOTE = "a run that shards nothing counts without it, too"


def _is_product(node: cst.CSTNode) -> TypeGuard[cst.BinaryOperation]:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply)


def _all_that_goes(layout: Layout, statement: cst.CSTNode) -> cst.CSTNode:
    """The statement, or the `if` around it that does nothing else."""
    around = next((a for a in layout.ancestors(statement) if isinstance(a, cst.If)), None)
    if around is None or around.orelse is not None or len(around.body.body) != 1:
        return statement
    is_only = layout.block(statement) is around.body
    calls = [n.func for n in walk(around.test) if isinstance(n, cst.Call)]
    asks = all(isinstance(f, cst.Attribute) and f.attr.value in _ASKING for f in calls)
    is_branch = isinstance(layout.parents[around], cst.If)  # `elif`
    return around if is_only and asks and not is_branch else statement


_ASKING = ("is_available", "is_initialized", "get_world_size", "get_rank")
"""Calls without effects that a test of the run may make."""


def _scaled(trace: Trace) -> Iterator[tuple[Event, Value, str]]:
    """What is multiplied by the number of ranks, or summed over them."""
    products = trace.of(Operated)
    for operated in products:
        sides = (operated.left, operated.right)
        if operated.symbol != "*" or not any(_is_world_size(v) for v in sides):
            continue
        value = operated.left if _is_world_size(operated.right) else operated.right
        made = operated.left.part(("*", operated.right))
        if not any(made in (p.left, p.right) and p.symbol == "*" for p in products):
            yield operated, value, "counted and multiplied by the number of ranks"
    for collective in trace.of(Collective):
        summed = sums_over_ranks(trace, collective)
        if summed is not None:
            yield collective, summed, "counted and summed over the ranks"


def _is_world_size(value: Value) -> bool:
    """Whether a value is the number of ranks and nothing else."""
    while (
        isinstance(value, Part) and isinstance(value.key, tuple) and value.key[0] in ("int", "call")
    ):
        if value.key[0] == "call":
            break
        value = value.owner
    return of_world_size(value) and not (
        isinstance(value, Part) and isinstance(value.key, tuple) and value.key[0] != "call"
    )


def _counted(trace: Trace, value: Value, depth: int) -> Parameters | None:
    """The parameters of which a value is the number of elements, all of them added up."""
    if depth == 0:
        return None
    if isinstance(value, Container):
        found = [_counted(trace, v, depth - 1) for _, v in trace.memory.entries(value)]
        return found[0] if found and all(one is found[0] for one in found) else None
    if not isinstance(value, Part) or not isinstance(value.key, tuple):
        return None
    operation, *operands = value.key
    if operation in (".numel()", ".nelement()"):
        element = value.owner
        while isinstance(element, Part) and (
            isinstance(element.key, Round) or element.key in ("[1]", ".data")
        ):
            element = element.owner
        return element if isinstance(element, Parameters) else None
    if operation not in _NUMBERS:
        return None
    parts = [_counted(trace, v, depth - 1) for v in (value.owner, *operands) if _counts(v)]
    return parts[0] if parts and all(one is parts[0] for one in parts) else None


def _counts(value: object) -> bool:
    return isinstance(value, Value) and not isinstance(value, Literal)


def _shard_of(trace: Trace, event: Event, counted: Parameters) -> Shard | None:
    found = sharded(trace, event, counted.of)
    if found is None or found[0].event.open or "ignored_params" in found[0].event.options:
        return None
    if counted.taken is not None and counted.taken < found[0].order:
        return None
    return found[0]
