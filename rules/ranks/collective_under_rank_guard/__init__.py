"""A call that all ranks must make is made by some ranks only.

## What it does

Finds collectives (`barrier`, `all_reduce`, `full_tensor`, full state dicts, DCP's `save` and `load`), forwards
and backwards of sharded models and gradient clipping under a test of the rank, when the other ranks make no such call,
or make the same calls in another order.

## Why is this bad

The ranks that take part wait for those that do not: the job hangs until the process group's timeout, or meets the
other ranks' next collective and mixes data. Ranks that reduce two sums in opposite orders get one result for both,
without an error: 4 and 4, where 2 and 6 were right (measured with two ranks).

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 options = StateDictOptions(full_state_dict=True, cpu_offload=True)
+state = get_model_state_dict(model, options=options)
 if dist.get_rank() == 0:
-    torch.save(get_model_state_dict(model, options=options), "model.pt")
+    torch.save(state, "model.pt")
```

## Forms

- Found: a property that asks for the rank, and a helper function that gathers.
- Found: a barrier under the rank, beside another test.
- Found: a test of the rank where a value is known to be sharded.
- Found: a value that only one rank has.
- Found: the group of a dimension of a mesh.
- Found: the same collectives in another order.
- Not found: a rank that a function outside of the project gives.

## Fix safety

Unsafe: a gather that gives a value (`get_model_state_dict`, `get_optimizer_state_dict`, `get_state_dict`,
`full_tensor`) moves above an `if` that asks only for the rank, and what is done with the value stays below. Every
rank must reach the test, and each holds the whole value unless it is offloaded.

## Known limits

There is no fix for other calls, for a test that asks for more than the rank, and where statements between the
test and the gather have to do with what it reads.

A collective in a helper is reported at the call under the guard. A group that is passed is followed where it is that of a
dimension of a mesh and the test asks for rank 0 of all. Silent with other groups, when the
test is about membership of a group, and when the other side of the test has a collective of the same kind in the same
`for` loops: a `barrier` after the loop is no counterpart of one inside it. `full_tensor()` of the norm that
`clip_grad_norm_` and `get_total_norm` return needs the other ranks where the project's oldest torch is older than 2.10,
and for the infinity norm.
Code behind a `return` that depends on the rank is FSDP402, an evaluation on one rank is FSDP411.

## References

- https://docs.pytorch.org/docs/stable/distributed.html
- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fsdp2lint.api import Collective, Finding, Forward, Guard, Trace, Value, rule

from ..._common.evaluation import evaluates
from ..._common.meetings import (
    Meeting,
    inside_test,
    meetings,
    meets_inside,
    one_sided,
    rank_guards,
    under,
)
from .hoisting import hoisted


@rule(code="FSDP401", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Collectives that some ranks never call."""
    if trace.truncated:  # the other ranks' call may be in what was not walked
        return
    evaluated = {
        under(m.event, guard).node
        for m in meetings(trace)
        for guard in rank_guards(m.event)
        if evaluates(trace, m.event)
    }
    said: set[Meeting] = set()
    for meeting, guard, at in one_sided(trace):
        if meeting not in said and at.node not in evaluated:
            said.add(meeting)
            yield Finding(
                at=at,
                message=f"{meeting.said} is reached only when `{guard.words()}`: the other ranks never "
                "come and the job hangs",
                because=meets_inside(meeting, at),
                fix=hoisted(trace, meeting, guard) if at is meeting.event.at else None,
            )
    yield from _in_another_order(trace)


def _in_another_order(trace: Trace) -> Iterator[Finding]:
    """The two sides of a test of the rank that come to the same meetings, one in another order than the other."""
    said: set[object] = set()
    for meeting in meetings(trace):
        for guard in rank_guards(meeting.event):
            if guard.site is None or guard.site.node in said:
                continue
            said.add(guard.site.node)
            here, there = _under_test(trace, guard), _under_test(trace, ~guard)
            pair = _first_crossed(here, there)
            if pair is None:
                continue
            mine, other = pair
            yield Finding(
                at=under(mine.event, guard),
                message=f"where `{guard.words()}` a rank reaches {_said(mine)} here and the others {_said(other)}: each "
                "waits in another call, or gets what was meant for the other one; call them in one order on all ranks",
                because=((other.event, "the others come here"),),
            )


def _under_test(trace: Trace, guard: Guard) -> list[Meeting]:
    """The meetings on one side of a test, in order; none where other tests below it decide too."""
    found = [
        m for m in meetings(trace) if guard in rank_guards(m.event) and inside_test(m.event, guard)
    ]
    same = len({m.event.guards.clauses for m in found}) == 1
    return found if same else []


def _first_crossed(here: list[Meeting], there: list[Meeting]) -> tuple[Meeting, Meeting] | None:
    """The first two that do not meet each other, where each side comes to what the other comes to."""
    for key in (_kind, _kind_and_subject):
        mine, others = [key(m) for m in here], [key(m) for m in there]
        if Counter(mine) == Counter(others) and mine != others:
            pairs = zip(here, there, strict=True)
            return next((a, b) for a, b in pairs if key(a) != key(b))
    return None


def _said(meeting: Meeting) -> str:
    about = meeting.event.about if isinstance(meeting.event, Collective) else None
    return meeting.said if about is None else f"{meeting.said} of `{about.words()}`"


def _kind(meeting: Meeting) -> tuple[str, Value | None]:
    return meeting.kind, None


def _kind_and_subject(meeting: Meeting) -> tuple[str, Value | None]:
    event = meeting.event
    if isinstance(event, Collective):
        return meeting.kind, event.about
    return meeting.kind, event.module if isinstance(event, Forward) else None
