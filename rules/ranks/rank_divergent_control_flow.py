"""A sharded part of a model computes only when the data of this rank ask for it.

## What it does

Finds calls of a module with its own `fully_shard`, inside the forward of the sharded model around it, under a
test that reads values of a tensor (`mask.any()`, `(ids == IMAGE).any()`, `lengths.sum().item() > 0`), with no
call of it on the other side. Finds collectives, checkpoints and forwards of a sharded model under a test of
something that each rank has for itself: its loss (`if loss.item() < best:`), its clock, its random numbers, whether
its batch has an entry (`batch.get("images") is not None`), or whether a file is there in a folder that each machine has
for itself (`/tmp`, `$TMPDIR`). Finds them too in loops that make as many rounds as the share of the rank has elements
(`range(rank, len(questions), world_size)`, `enumerate(files[rank::world_size])`): the shares are equal only where the
number of ranks divides that of the elements.

## Why is this bad

Calling a sharded module gathers its parameters from all ranks. A rank whose batch has no image (no long
sequence, no token for this expert) does not come, and the others wait for it: the job hangs, after hours
perhaps, when the first such batch is met. Call the module on every rank, with a dummy input whose result is
multiplied by zero. Without a `fully_shard` of its own nothing waits, but a rank that did not use it has no gradient of
its parameters, and ranks reduce different tensors: PyTorch 2.13 adds zeros after `model.set_reduce_scatter_unused_params(True)`.
`fsdp2lint rehearse` tells both of a run.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard


 class Model(nn.Module):
     def __init__(self):
         super().__init__()
         self.trunk = nn.Linear(8, 8)
         self.vision = nn.Linear(8, 8)

     def forward(self, x, has_image):
         x = self.trunk(x)
-        if has_image.any():
-            x = x + self.vision(x)
-        return x
+        return x + self.vision(x) * has_image[:, None]


 dist.init_process_group("gloo")
 model = Model()
 fully_shard(model.vision)
 fully_shard(model)
 model(torch.randn(4, 8), torch.rand(4) > 0.9).sum().backward()
```

## Forms

- Found: experts that are called only where tokens choose them.
- Found: a checkpoint by the clock of each rank.
- Found: a last save when the timer of `timeit` says that the hour is over.
- Found: answers to a share of the questions.
- Found: a resume from a folder that each machine has for itself.
- Not found: an input that only some batches have.
- Not found: layers that are dropped at random.

## Known limits

Inside a forward only tests that read values of a tensor are judged: whether an argument is None is often the same for
all ranks; an entry of a batch is one that `get` takes out of what a `DataLoader` gives. A loss is what a sharded model
computed from a `DataLoader` or what is trained on: text that is generated from a prompt is taken for the same on all
ranks. Silent when the test, or what it is computed from, was reduced or broadcast, where the script seeds Python's and
numpy's random numbers, and for files in other folders, which all machines may share. Tests of the rank itself are
FSDP401; a backward or a step that is left out is FSDP414, a loop or function that is left FSDP402. What differs only
because a rank has left out a backward (a counter of steps) is not reported again.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_pre_forward`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    Parameters,
    Part,
    Site,
    Trace,
    Value,
    once,
    options,
    rule,
    unwrapped,
)

from .._common.loops import loops_around
from .._common.meetings import alone, inside_test, meetings, under
from .._common.origins import OWN, differing_guard, written
from .._common.shared import Shard, sharded
from .._common.tensors import has_root_above
from ._common.shares import walks_of_shares

_READING = {".any", ".all", ".item", ".sum", ".nonzero", "torch.any", "torch.all", "torch.sum"}
_DERIVING = {
    *_READING,
    *(
        f".{name}"
        for name in "sum max min mean numel nonzero eq ne gt lt ge le bool float int".split()
    ),
    *(f"torch.{name}" for name in "sum max min eq ne isin isnan isfinite count_nonzero".split()),
    "builtins.bool",
    "builtins.int",
    "builtins.float",
}


@rule(code="FSDP412", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Meetings that depend on data."""
    if trace.truncated:
        return
    made = {c.result: c for c in trace.of(Called)}
    said: set[object] = set()
    for forward in trace.of(Forward):
        found = sharded(trace, forward, forward.module, itself=True)
        if forward.how != "call" or found is None or not has_root_above(trace, found[0]):
            continue
        shard, module = found
        outer = _running(trace, forward, shard)
        if outer is None:
            continue
        for guard in forward.guards:
            if guard in outer.guards or not _reads_data(trace, made, guard.test):
                continue
            if _on_the_other_side(trace, forward, guard):
                continue
            said.add(forward.at.node)
            yield Finding(
                at=forward,
                message=f"`{module.words()}` is sharded and computes only when `{guard.words()}`, which each rank "
                "asks its own data: where one rank does not come, the others wait for ever",
                because=(shard.reason,),
            )
            break

    yield from _by_own_values(trace, said)
    yield from _by_shares(trace)


def _by_shares(trace: Trace) -> Iterator[Finding]:
    """Meetings in each round of a loop that makes as many rounds as the share of its rank has elements."""
    for called, loop in walks_of_shares(trace):
        met = next((m for m in meetings(trace) if loop in loops_around(m.event)), None)
        if met is None or alone(met.event.guards):
            continue
        yield Finding(
            at=called,
            message=f"each rank makes as many rounds as its share has elements, and meets the others in {met.said}: where "
            "the ranks do not share evenly, those with one more wait forever; give all of them equally many",
            because=((met.event, "the ranks meet here"),),
        )


def _by_own_values(trace: Trace, said: set[object]) -> Iterator[Finding]:
    """Meetings under tests that each rank asks its own loss, clock, random numbers or batch."""
    for meeting in meetings(trace):
        event = meeting.event
        units = [guard for clause in event.guards.clauses if len(clause) == 1 for guard in clause]
        inside = [guard for guard in units if inside_test(event, guard)]
        found = differing_guard(trace, inside, event.order, "disk")
        if found is None:
            found = _skipped(trace, units, event)
        if found is None:
            continue
        guard, own = found
        if isinstance(event, Backward) and own == OWN["loss"]:
            continue  # FSDP414
        at = under(event, guard) if guard in inside else _asked_at(guard, event)
        if at.node in said or any(
            other.kind == meeting.kind and ~guard in other.event.guards for other in meetings(trace)
        ):
            continue
        said.add(at.node)
        inner = ((event, "the ranks meet here"),) if at != event.at else ()
        yield Finding(
            at=at,
            message=f"each rank decides by {own} (`{written(guard)}`) whether it reaches {meeting.said}: ranks that do "
            "wait forever for ranks that do not; reduce the condition over all ranks first",
            because=inner,
        )


def _skipped(trace: Trace, units: list[Guard], event: Event) -> tuple[Guard, str] | None:
    """The test by which a rank goes on with the next round before it comes to an event, and what it asks.

    What is left out because of the loss is FSDP414. A rank that meets the others before it goes on has let them know.
    """
    for guard in units:
        left = _continues(trace).get(~guard)
        if left is None or left > event.order or _met(trace).get(~guard, left) < left:
            continue
        found = differing_guard(trace, [guard], left, "disk")
        if found is not None and found[1] != OWN["loss"]:
            return found
    return None


@once
def _continues(trace: Trace) -> dict[Guard, int]:
    """When a loop first goes on with its next round under each test."""
    return _first(e for e in trace.of(Exited) if e.how == "continue")


@once
def _met(trace: Trace) -> dict[Guard, int]:
    """When the ranks first meet under each test."""
    return _first(meeting.event for meeting in meetings(trace))


def _first(events: Iterable[Event]) -> dict[Guard, int]:
    found: dict[Guard, int] = {}
    for event in sorted(events, key=lambda one: one.order):
        for guard in event.guards:
            found.setdefault(guard, event.order)
    return found


def _asked_at(guard: Guard, event: Event) -> Site:
    return event.at if guard.site is None else guard.site


def _running(trace: Trace, forward: Forward, shard: Shard) -> Forward | None:
    """The forward of a sharded module around the one that is called, inside which the call is made."""
    for outer in trace.before(forward, Forward):
        if any(site.node is outer.at.node for site in forward.moment.calls):
            inner = shard.module
            if any(trace.inside(inner, unwrapped(m)) for m in options(outer.module)):
                return outer
    return None


def _reads_data(trace: Trace, made: dict[Value, Called], test: Value) -> bool:
    """Whether a test reads the values of a tensor that is no parameter and was not reduced."""
    todo, seen, reads = [test], set[Value](), False
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if isinstance(one, Parameters) or one in _reduced(trace):
            return False
        if isinstance(one, Not):
            todo.append(one.test)
        elif isinstance(one, Logic):
            todo += one.operands
        elif one in made:
            called = made[one]
            reads |= called.name in _READING
            if called.name in _DERIVING:
                todo += [v for v in (called.receiver, *called.arguments) if v is not None]
            elif called.name.startswith("torch.distributed."):
                return False
        elif isinstance(one, Part) and one.operation:
            todo.append(one.owner)
    return reads


@once
def _reduced(trace: Trace) -> set[Value]:
    """What was given to the other ranks."""
    return {
        value
        for called in trace.of(Called)
        if called.name.startswith("torch.distributed.") and not called.name.endswith("full_tensor")
        for value in called.arguments
    }


def _on_the_other_side(trace: Trace, forward: Forward, guard: Guard) -> bool:
    """Whether the module computes where the test comes out otherwise."""
    other = ~guard
    return any(
        unwrapped(twin.module) is unwrapped(forward.module)
        and twin.guards.units.get(other.test) == other
        for twin in trace.of(Forward)
    )
