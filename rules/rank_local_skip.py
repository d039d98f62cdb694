"""A rank skips the backward or the step because of what its own loss is.

## What it does

Finds `backward()` and `optimizer.step()` under a test of the loss of this rank (`torch.isnan(loss)`,
`loss.item() > 100`, `math.isfinite(loss)`), for a loss that a sharded model gave and that was not reduced
over the ranks.

## Why is this bad

Each rank has another part of the data, so the test comes out differently. A backward that one rank leaves out
is waited for by all others: the job hangs. A step that one rank leaves out leaves its shards behind those of
the others, silently. Reduce the test over the ranks first, so that all take the same side.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
for _ in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    if torch.isnan(loss):
        continue
    loss.backward()
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
for _ in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    bad = torch.isnan(loss).float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad:
        continue
    loss.backward()
```

## Known limits

Only tests of the loss itself are judged. A norm of the gradients from `clip_grad_norm_` is the same on all
ranks and is fine. Silent when the loss or the test was handed to a collective or to code that cannot be
followed, when the other side ends the program, and when it has a backward of its own.

## References

- https://docs.pytorch.org/docs/stable/distributed.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py` (`post_backward`: reduce-scatter)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Called,
    Event,
    Exited,
    Finding,
    Forward,
    Guard,
    Logic,
    Not,
    Part,
    Stepped,
    Trace,
    Value,
    options,
    rule,
)

from ._order import stands_in
from ._shared import sharded

_DERIVING = {
    *(f"torch.{name}" for name in "isnan isinf isfinite any all abs".split()),
    *(f"math.{name}" for name in "isnan isinf isfinite".split()),
    *(f"numpy.{name}" for name in "isnan isinf isfinite".split()),
    *(f"builtins.{name}" for name in "float bool abs".split()),
    *(
        f".{name}"
        for name in "item detach isnan isinf isfinite any all abs cpu float mean clone bool".split()
    ),
}
_LEAVING = ("return", "break", "continue")


@rule(code="FSDP414", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Backwards and steps that only some ranks make."""
    if trace.truncated:
        return
    made = {c.result: c for c in trace.of(Called)}
    said: set[object] = set()
    for event, losses in _events(trace):
        for guard in event.guards:
            loss = next((one for one in losses if _is_made_of(made, guard.test, one)), None)
            if loss is None or guard.site is None or guard.site.node in said:
                continue
            if _reduced(trace, made, loss, event) or _settled(trace, event, guard):
                continue
            said.add(guard.site.node)
            step = isinstance(event, Stepped)
            what = "makes its step" if step else "runs the backward"
            then = (
                "its shards fall behind, silently"
                if step
                else "the others wait for it and the job hangs"
            )
            yield Finding(
                at=guard.site,
                message=f"each rank asks the loss of its own data whether it {what}: where one rank decides "
                f"otherwise, {then}; reduce the test over the ranks first",
                because=(
                    (event, "this is left out" if step else "all ranks meet in this backward"),
                ),
            )


def _events(trace: Trace) -> Iterator[tuple[Event, list[Value]]]:
    """Backwards and steps with the losses that are known by then."""
    losses: list[Value] = []
    events: list[Event] = [*trace.of(Backward), *trace.of(Stepped)]
    for event in sorted(events, key=lambda e: e.order):
        if isinstance(event, Backward):
            for one in options(event.of):
                if isinstance(one, Part) and one not in losses and _of_sharded(trace, event):
                    losses.append(one)
        yield event, losses


def _of_sharded(trace: Trace, event: Event) -> bool:
    """Whether a sharded model has computed before."""
    return any(
        f.how == "call" and sharded(trace, f, f.module) is not None
        for f in trace.before(event, Forward)
    )


def _is_made_of(made: dict[Value, Called], test: Value, loss: Value) -> bool:
    """Whether a test is about a loss and nothing but constants beside it."""
    todo, seen = [test], set[Value]()
    while todo:
        one = todo.pop()
        if one is loss:
            return True
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, Not):
            todo.append(one.test)
        elif isinstance(one, Logic):
            todo += one.operands
        elif one in made:
            called = made[one]
            if called.name in _DERIVING:
                todo += [v for v in (called.receiver, *called.arguments) if v is not None]
        elif isinstance(one, Part) and isinstance(one.key, tuple):
            todo.append(one.owner)
    return False


def _reduced(trace: Trace, made: dict[Value, Called], loss: Value, event: Event) -> bool:
    """Whether a loss, or something made of it, may have been made the same on all ranks."""
    for called in trace.of(Called):
        if (
            called.order > event.order
            or called.name in _DERIVING
            or called.name.endswith("backward")
        ):
            continue
        collective = called.name.startswith(
            ("torch.distributed.", "accelerate.")
        ) or called.name in (
            ".all_reduce",
            ".reduce",
            ".gather",
        )
        if collective and any(_is_made_of(made, v, loss) for v in called.arguments):
            return True
    return any(e.value is loss and e.order < event.order for e in trace.escapes(loss))


def _settled(trace: Trace, event: Event, guard: Guard) -> bool:
    """Whether the ranks on the other side end the program, or do the same in another way."""
    if guard.site is not None and stands_in(guard.site, cst.Assert):
        return True
    other = ~guard
    for left in trace.of(Exited):
        if left.how not in _LEAVING and (
            left.guards.units.get(other.test) == other or left.rank.units.get(other.test) == other
        ):
            return True
    return any(
        twin.guards.units.get(other.test) == other
        for twin in trace.of(type(event))
        if twin is not event
    )
