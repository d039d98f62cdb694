"""Some ranks leave before a call that all ranks must make.

## What it does

Finds `return`, `break`, `continue` and `sys.exit` before a collective, a forward of a sharded model, or a clipping of its
gradients, also the next one of the loop that is left, under a test of the rank, or (all but `sys.exit`) of something
that each rank has for itself: its loss, its clock, its random numbers, whether its batch has an entry, or a tensor of a
flag that only some ranks set (`torch.tensor(stop)`, with no broadcast).

## Why is this bad

The ranks that go on wait in the collective for those that have left: the job hangs. A loss, a clock or a random number
is another one on each rank, so sooner or later one rank leaves and the others do not; reduce the test first.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
 from torch.distributed.fsdp import fully_shard


 def save(model):
+    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
+    state = get_model_state_dict(model, options=options)
     if dist.get_rank() != 0:
         return
-    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
-    torch.save(get_model_state_dict(model, options=options), "model.pt")
+    torch.save(state, "model.pt")


 dist.init_process_group("gloo")
 net = nn.Linear(8, 8)
 fully_shard(net)
 save(net)
```

## Forms

- Found: a method that returns from the middle of its micro-batches.
- Not found: how many files this machine has.

## Known limits

As for FSDP401. A rank that leaves by an exception is left alone. What was handed to a collective before counts as the
same on all ranks; so do Python's and numpy's random numbers where the script seeds them, and torch's, whose default
seed is a constant. Shapes, lengths and files are not asked about, nor is what differs only because a rank has left out
a backward (FSDP414). Of tests that join several by `and` or `or` one side is judged where it decides alone. A departure that leaves out a backward or a step is FSDP414.

## References

- https://docs.pytorch.org/docs/stable/distributed.html
"""

from __future__ import annotations

from collections.abc import Iterator

from libcst import CSTNode

from fsdp2lint.api import Backward, Event, Exited, Finding, Guard, Stepped, Trace, once, rule

from .._common.meetings import (
    Meeting,
    alone,
    beside,
    deciding,
    inside_test,
    meetings,
    misses,
    parts,
    passes_without,
    rank_guards,
)
from .._common.origins import differing_guard, written
from .._common.ranks import decides
from .._common.shared import line_of


@rule(code="FSDP402", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Meetings that some ranks have left before."""
    if trace.truncated:  # those who left may meet the others in what was not walked
        return
    said: set[object] = set()
    last = _last_in_calls(trace)
    for left in trace.of(Exited):
        if left.how == "raise" or left.order > last.get(_calls(left, left.how), -1):
            continue
        guard = next((g for g in left.rank if decides(g.test)), None)
        if guard is None:
            yield from _left_by_own_values(trace, left, said)
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


def _left_by_own_values(trace: Trace, left: Exited, said: set[object]) -> Iterator[Finding]:
    """Departures that each rank decides by its own loss, clock or random numbers."""
    if left.how not in ("return", "break", "continue") or left.at.node in said:
        return
    if alone(left.guards):
        return
    units = [guard for clause in left.rank.clauses if len(clause) == 1 for guard in clause]
    units += deciding(trace, left.rank, said)
    units = [guard for guard in units if guard not in said]  # most tests stand over many departures
    found = differing_guard(trace, units, left.order)
    if found is None:
        said.update(units)
        return
    if _is_skip(trace, left, found[0]):
        return
    guard, own = found
    missed = _missed(trace, left, guard)
    if missed is None:
        return
    said.add(left.at.node)
    yield Finding(
        at=left,
        message=f"each rank decides by {own} (`{written(guard)}`) whether it leaves here: those that go on hang in "
        f"{missed.said}; reduce the test over the ranks first",
        because=((missed.event, "the ranks meet here"),),
    )


def _is_skip(trace: Trace, left: Exited, guard: Guard) -> bool:
    """Whether a backward or a step is left out by it too: that is FSDP414."""
    events: list[Event] = [*trace.of(Backward), *trace.of(Stepped)]
    return any(
        left.order < e.order and ~guard in clause for e in events for clause in e.guards.clauses
    )


def _missed(trace: Trace, left: Exited, guard: Guard) -> Meeting | None:
    """The first meeting that those who left miss and the others come to."""
    for meeting in _for_all_ranks(trace):
        event = meeting.event
        if event.order < left.order or event.moment.stage != left.moment.stage:
            continue
        if decides(guard.test) and not parts(event, guard):
            continue
        if misses(event, left) and passes_without(event.guards, left.rank, guard):
            return None if _meets_elsewhere(trace, meeting, left, guard) else meeting
    return None


@once
def _last_in_calls(trace: Trace) -> dict[tuple[CSTNode, ...], int]:
    """By the calls that lead into a function: when the last meeting is that happens in it, or in what it calls."""
    last: dict[tuple[CSTNode, ...], int] = {}
    for meeting in _for_all_ranks(trace):
        way = _calls(meeting.event)
        for depth in range(len(way) + 1):
            last[way[:depth]] = max(meeting.event.order, last.get(way[:depth], -1))
    return last


def _calls(event: Event, how: str = "return") -> tuple[CSTNode, ...]:
    """The calls that lead to what an event leaves: its function, or the program."""
    inner = how in ("return", "break", "continue")
    return tuple(call.node for call in event.calls) if inner else ()


@once
def _for_all_ranks(trace: Trace) -> tuple[Meeting, ...]:
    """The meetings that no test of the rank keeps for some."""
    return tuple(
        one
        for one in meetings(trace)
        if not any(inside_test(one.event, guard) for guard in rank_guards(one.event))
    )


def _meets_elsewhere(trace: Trace, meeting: Meeting, left: Exited, guard: Guard) -> bool:
    """Whether those who have left, and they alone, come to a meeting of the same kind.

    One to which all come later makes up for nothing: the others are one meeting ahead by then.
    """
    return any(
        other.kind == meeting.kind
        and (
            other.event.guards.implies(left.rank)
            if other.event.order < left.order
            else guard in other.event.guards and not misses(other.event, left)
        )
        for other in meetings(trace)
    )
