"""A rank skips the backward or the step because of what its own loss is.

## What it does

Finds `backward()` and `optimizer.step()` under a test of what a sharded model gave for the data of this rank
(`torch.isnan(loss)`, `loss.item() > 100`, `math.isfinite(loss)`) and that was not reduced over the ranks. The loss may
come from a `criterion(…)`, be a sum over micro-batches or scaled, and the test may be in a helper function.

## Why is this bad

Each rank has another part of the data, so the test comes out differently. A backward that one rank leaves out
is waited for by all others: the job hangs. A step that one rank leaves out leaves its shards behind those of
the others, silently. Reduce the test over the ranks first, so that all take the same side.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 for _ in range(3):
     loss = model(torch.randn(4, 8)).square().mean()
-    if torch.isnan(loss):
+    bad = torch.isnan(loss).float()
+    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
+    if bad:
         continue
     loss.backward()
```

## Forms

- Found: a helper function that asks, and a step instead of a backward.
- Found: a loss that the model gives beside its logits.
- Not found: a loss that a function of another library computes.

## Known limits

Only tests of values are judged, not of shapes, types or `None`. A norm of the gradients from `clip_grad_norm_` is left
alone (FSDP218). Silent when the loss or the test was handed to a collective or to code that cannot be followed, when
the other side ends the program, and when it has a backward of its own. A loss that functions of other libraries
compute is not followed through them, unless they are of torch, numpy or `math`, or a mask or weights of the rank's own
batch are applied to it afterwards.

## References

- https://docs.pytorch.org/docs/stable/distributed.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py` (`post_backward`: reduce-scatter)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Event,
    Exited,
    Finding,
    Guard,
    Stepped,
    Trace,
    Value,
    rule,
)

from .._common.meetings import deciding
from .._common.order import stands_in
from .._common.origins import differing

_LEAVING = ("return", "break", "continue")


@rule(code="FSDP414", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Backwards and steps that only some ranks make."""
    if trace.truncated:
        return
    said: set[object] = set()
    same: set[Value] = set()  # tests that are the same on all ranks, as far as is known: asked once
    events: list[Event] = [*trace.of(Backward), *trace.of(Stepped)]
    for event in sorted(events, key=lambda e: e.order):
        for guard in (*event.guards, *deciding(trace, event.guards)):
            if guard.site is None or guard.site.node in said or guard.test in same:
                continue
            if differing(trace, guard.test, event.order, "loss") is None:
                same.add(guard.test)
                continue
            if _settled(trace, event, guard):
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


def _settled(trace: Trace, event: Event, guard: Guard) -> bool:
    """Whether the ranks on the other side end the program, or do the same in another way."""
    if guard.site is not None and stands_in(guard.site, cst.Assert):
        return True
    other = ~guard
    for left in trace.of(Exited):
        if left.how not in _LEAVING and any(other in clause for clause in left.rank.clauses):
            return True
    return any(
        twin.guards.units.get(other.test) == other
        for twin in trace.of(type(event))
        if twin is not event
    )
