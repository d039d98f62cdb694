"""Some ranks leave before a call that all ranks must make.

## What it does

Finds `return`, `break`, `continue` and `sys.exit` under a test of the rank before a collective, a forward of a
sharded model, or a clipping of its gradients.

## Why is this bad

The ranks that go on wait in the collective for those that have left: the job hangs.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def save(model):
    if dist.get_rank() != 0:
        return
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    torch.save(get_model_state_dict(model, options=options), "model.pt")


dist.init_process_group("gloo")
net = nn.Linear(8, 8)
fully_shard(net)
save(net)
```

## Use instead

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def save(model):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    if dist.get_rank() != 0:
        return
    torch.save(state, "model.pt")


dist.init_process_group("gloo")
net = nn.Linear(8, 8)
fully_shard(net)
save(net)
```

## Known limits

As for FSDP401. A rank that leaves by an exception is left alone.

## References

- https://docs.pytorch.org/docs/stable/distributed.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Exited, Finding, Guard, Trace, rule

from ._meetings import (
    Meeting,
    beside,
    decides,
    inside_test,
    meetings,
    misses,
    passes_without,
    rank_guards,
)
from ._shared import line_of


@rule(code="FSDP402", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Meetings that some ranks have left before."""
    if trace.truncated:  # those who left may meet the others in what was not walked
        return
    for left in trace.of(Exited):
        guard = next((g for g in left.rank if decides(g.test)), None)
        if guard is None or left.how == "raise":
            continue
        missed = _missed(trace, left, guard)
        if missed is None:
            continue
        at = beside(missed.event, left)
        met = ((missed.event, "the ranks meet here"),) if at is not missed.event.at else ()
        yield Finding(
            at=at,
            message=f"the ranks where `{guard.words()}` have left on {line_of(left, missed.event)}, before "
            f"{missed.said}: the others hang in it",
            because=((left, f"some ranks leave here by `{left.how}`"), *met),
        )


def _missed(trace: Trace, left: Exited, guard: Guard) -> Meeting | None:
    """The first meeting that those who left miss and the others come to."""
    for meeting in meetings(trace):
        event = meeting.event
        if event.order < left.order or event.moment.stage != left.moment.stage:
            continue
        if any(inside_test(event, g) for g in rank_guards(event)):
            continue
        if misses(event, left) and passes_without(event.guards, left.rank, guard):
            return None if _meets_elsewhere(trace, meeting, left) else meeting
    return None


def _meets_elsewhere(trace: Trace, meeting: Meeting, left: Exited) -> bool:
    """Whether those who have left come to a meeting of the same kind."""
    return any(
        other.kind == meeting.kind
        and (
            other.event.guards.implies(left.rank)
            if other.event.order < left.order
            else not misses(other.event, left)
        )
        for other in meetings(trace)
    )
