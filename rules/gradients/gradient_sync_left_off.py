"""Gradient synchronisation is switched off and never on again.

## What it does

Finds `set_requires_gradient_sync(False)` on a model that is trained, when nothing ever switches it back, and switches
that are off just when the optimizer steps: `micro != last`, `micro < last`, or the opposite of the test above the step.

## Why is this bad

While the switch is off, `backward()` keeps unsharded gradients and reduces nothing: the sharded
parameters' `grad` stays None, `optimizer.step()` skips them all, nothing is trained, and nothing raises. A switch that is
off in the last round of an accumulation leaves the gradients of that round out of the step and puts them into the next.

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
 for step in range(8):
-    model.set_requires_gradient_sync(False)
+    model.set_requires_gradient_sync(step % 4 == 3)
     model(torch.randn(4, 8)).sum().backward()
     optimizer.step()
```

## Forms

- Found: a trainer that never switches it on again, on each block.
- Found: a switch that is the opposite of the test above the step.
- Found: a context manager that forgets to switch it on.
- Not found: a switch and a step that count the rounds differently.
- Not found: a switch that comes on under a condition that never holds.

## Known limits

Reports only models that the project builds and never hands to code that cannot be followed.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`set_requires_gradient_sync`)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

from fsdp2lint.api import (
    Backward,
    Escaped,
    External,
    Finding,
    Guards,
    Literal,
    Not,
    Part,
    Round,
    Stepped,
    SyncSwitched,
    Trace,
    Value,
    options,
    rule,
    unwrapped,
)

from .._common.loops import loops_around
from .._common.meta import is_choice_of_the_run, ways_around
from .._common.shared import Shard, overlap, sharded, together


@rule(code="FSDP211", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Switches that stay off, and those that are off when the optimizer steps."""
    said: set[object] = set()
    for switched in trace.of(SyncSwitched):
        found = sharded(trace, switched, switched.module)
        if (
            switched.at.node in said
            or switched.on is True
            or found is None
            or not _kept(trace, switched, *found)
        ):
            continue
        shard, module = found
        backward = next(trace.after(switched, Backward), None)
        if backward is None:
            continue
        because = (shard.reason,)
        if switched.on is None:
            stepped = _step_without(trace, switched)
            if stepped is not None:
                said.add(switched.at.node)
                yield Finding(
                    at=switched,
                    message=f"gradient sync of `{module.words()}` is off in the backward before each step: the step "
                    "leaves its gradients out, and the next one gets them",
                    because=(*because, (stepped, "the optimizer steps here")),
                )
        elif not _switched_on(trace, switched):
            yield Finding(
                at=switched,
                message=f"gradient sync of `{module.words()}` is switched off and never on again: "
                "its gradients stay None and nothing is trained",
                because=(*because, (backward, "this backward reduces no gradients")),
            )


def _kept(trace: Trace, switched: SyncSwitched, shard: Shard, module: Value) -> bool:
    """Whether no unseen code has had the module, at least on some path of the run: a flag may hand it to a library."""
    if trace.kept(module):
        return True
    holders = trace.holders(module)
    if trace.truncated or not holders.isdisjoint(trace.memory.foreign):
        return False
    lost = [e for e in trace.of(Escaped) if not holders.isdisjoint(_whole(e.value))]
    return bool(lost) and bool(ways_around(trace, switched, lost, module, shard.guards))


def _whole(value: Value) -> Iterator[Value]:
    """A value and what it is a part of."""
    seen: Value | None = value
    while seen is not None:
        yield unwrapped(seen)
        seen = seen.owner


def _switched_on(trace: Trace, off: SyncSwitched) -> bool:
    """Whether anything can switch the sync of the module, or of one around or inside it, on again."""
    return any(
        switched.on is not False
        and overlap(trace, unwrapped(switched.module), unwrapped(off.module)) is not None
        and not _on_other_runs(trace, switched, off)
        for switched in trace.of(SyncSwitched)
    )


def _on_other_runs(trace: Trace, one: SyncSwitched, other: SyncSwitched) -> bool:
    """Whether a choice of the whole run decides which of two switches is used."""
    chosen = (
        clause
        for clause in one.guards.since(other.guards)
        if all(is_choice_of_the_run(trace, guard, other.module) for guard in clause)
    )
    return Guards(frozenset(chosen)).excludes(other.guards)


def _step_without(trace: Trace, switched: SyncSwitched) -> Stepped | None:
    """The step before which the switch surely is off, as its value says; no other call switches it."""
    if any(
        other.at.node is not switched.at.node and not _on_other_runs(trace, other, switched)
        for other in trace.of(SyncSwitched)
    ):
        return None
    value = _switch(trace, switched)
    stepped = next(trace.after(switched, Stepped), None)
    if value is None or stepped is None or not _meets(trace, switched, stepped):
        return None
    test, opposite = _bare(value)
    above = stepped.guards.units.get(test)
    if above is not None:
        return stepped if above.taken is opposite else None
    inner = next(iter(loops_around(switched)), None)
    if inner is None or inner in loops_around(stepped):
        return None
    return stepped if all(_off_at_last(*_bare(one)) for one in options(value)) else None


def _meets(trace: Trace, switched: SyncSwitched, stepped: Stepped) -> bool:
    """Whether a switch and a step are of one run, whichever of several optimizers the step is of."""
    if together(switched.guards, stepped.guards):
        return True
    alike = [one for one in trace.of(Stepped) if one.at.node is stepped.at.node]
    return len(alike) > 1 and not any(switched.guards.excludes(one.guards) for one in alike)


def _bare(value: Value) -> tuple[Value, bool]:
    """A test without what negates it, and whether it is negated."""
    opposite = False
    while isinstance(value, Not):
        value, opposite = value.test, not opposite
    return value, opposite


def _switch(trace: Trace, switched: SyncSwitched) -> Value | None:
    """The value that the sync is switched by."""
    for called in trace.calls(".set_requires_gradient_sync"):
        if called.at.node is switched.at.node and called.moment.calls == switched.moment.calls:
            return called.argument(0, "requires_gradient_sync")
    return None


def _off_at_last(test: Value, opposite: bool) -> bool:
    """Whether a test of the number of a round comes out so that the sync is off in the last round."""
    if not isinstance(test, Part) or len(test.operands) != 1:
        return False
    (other,) = test.operands
    compare = _COMPARISONS.get(test.operation)
    number, ahead = _apart(test.owner)
    count = _rounds(number)
    if compare is None or count is None or not isinstance(other, Value):
        return False
    count, more = _apart(count)
    limit, beyond = _apart(other)
    beyond -= more
    if isinstance(limit, Literal) and isinstance(count, Literal):
        if not isinstance(limit.value, int) or not isinstance(count.value, int):
            return False
        beyond += limit.value - count.value
    elif limit is not count and limit not in options(count):  # a setting, or its default
        return False
    return compare(ahead - 1, beyond) is opposite


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _apart(value: Value) -> tuple[Value, int]:
    """What a number is computed from by adding and subtracting constants, and how much these make."""
    more = 0
    while isinstance(value, Part) and value.operation in ("+", "-") and len(value.operands) == 1:
        (number,) = value.operands
        if not isinstance(number, Literal) or type(number.value) is not int:
            break
        more += number.value if value.operation == "+" else -number.value
        value = value.owner
    return value, more


def _rounds(number: Value) -> Value | None:
    """How many rounds a loop makes that counts them from 0: ``range(n)``, ``enumerate(batches)``."""
    if isinstance(number, Part) and number.key == ("index",):
        element = number.owner
        walked = element.owner if isinstance(element, Part) else None
        rounds = isinstance(element, Part) and isinstance(element.key, Round)
        return walked.part(("len",)) if rounds and walked is not None else None
    made = number.owner if isinstance(number, Part) and isinstance(number.key, Round) else None
    if not isinstance(made, Part) or not isinstance(made.owner, External):
        return None
    given = made.operands
    if made.owner.name != "builtins.range" or len(given) not in (1, 2):
        return None
    return given[-1] if isinstance(given[-1], Value) else None
