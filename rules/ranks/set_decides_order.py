"""Ranks meet in the order of a set, which is another one in each process.

## What it does

Finds collectives and forwards of sharded modules in a loop over a set of names or of modules, where each round
communicates something else, and lists of modules for one `fully_shard` that are made from such a set. A list that is
made from a set (`list(names)`) has its order too.

## Why is this bad

Python hashes a string with a number that it draws anew in each process, and an object by its address. So the ranks
take the same names in different orders, and one rank's `loss` is added to another one's `accuracy`: of twelve
sums of one number each, eleven were wrong on two ranks, without an error. Where the shapes differ, the job hangs or
raises. A group with its modules in different orders gathers one module's weights into another one: four of six
layers had wrong weights. Walk `sorted(names)`, or a list or a dictionary, which keep their order.

## Example

```diff
 import torch
 import torch.distributed as dist

 dist.init_process_group("gloo")
 sums = {"loss": torch.ones(1), "accuracy": torch.zeros(1), "tokens": torch.ones(1)}
-for name in set(sums):
+for name in sorted(set(sums)):
     dist.all_reduce(sums[name])
```

## Forms

- Found: a helper that reduces, in a method.
- Found: one group of modules that a set names.
- Not found: a set of numbers, whose order is the same in all processes.

## Fix safety

Unsafe: `sorted(…)` around a set of known texts changes the order of the rounds.

## Known limits

Only sets that the script builds and of which at least one element is a known text, the name of a parameter, or a
module; `a & b` of two sets is not followed. Of collectives those count whose call, in the loop, names what the loop
walks, or something that was assigned from it there. Whoever starts all ranks with the same `PYTHONHASHSEED` has the
same order for texts; the rule does not see that, nor is it so for objects.

## References

- https://docs.python.org/3/using/cmdline.html#envvar-PYTHONHASHSEED
- https://docs.python.org/3/reference/datamodel.html#object.__hash__
- https://docs.pytorch.org/docs/stable/distributed.html#collective-functions
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Container,
    Finding,
    Fix,
    Iterated,
    Layout,
    Literal,
    Module,
    Part,
    Rewrite,
    Sharded,
    Site,
    Trace,
    Value,
    rule,
    unwrapped,
    walk,
)

from .._common.fixes import call_of
from .._common.meetings import Meeting, meetings

_OF_ALL = ("barrier", "monitored_barrier")
Walk = cst.For | cst.CompFor


@rule(code="FSDP420", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Meetings whose order a set decides."""
    said: set[object] = set()
    for walked in trace.of(Iterated):
        if walked.at.node in said or not _is_shuffled(trace, walked.over):
            continue
        met = next((m for m in meetings(trace) if _is_in_order_of(walked, m)), None)
        group = next((s for s in trace.of(Sharded) if _stands_in_call(walked, s)), None)
        if met is not None:
            what, where = f"meet in {met.said}", met.event
        elif group is not None:
            what, where = "put the modules of one group", group
        else:
            continue
        said.add(walked.at.node)
        yield Finding(
            at=walked,
            message=f"the ranks {what} in the order of a set, which is another one in each process: they exchange "
            "different tensors; walk `sorted(…)` of it, or a list",
            because=((where, "it happens here"),),
            fix=_sorted(trace, walked),
        )


def _is_shuffled(trace: Trace, value: Value) -> bool:
    """Whether what is walked has no order, and several entries that are no numbers."""
    if not isinstance(value, Container) or not value.shuffled:
        return False
    held = [one for _, one in trace.memory.entries(value)]
    return (len(held) > 1 or value.open) and any(map(_has_own_hash, held))


def _has_own_hash(value: Value) -> bool:
    """Whether the hash of a value is another one in each process: of a text, or of an object."""
    if isinstance(value, Literal):
        return isinstance(value.value, str | bytes)
    return isinstance(unwrapped(value), Module) or (
        isinstance(value, Part) and value.key == ".name"
    )


def _is_in_order_of(walked: Iterated, meeting: Meeting) -> bool:
    """Whether a meeting happens in a walk, each time for something else."""
    if meeting.kind in _OF_ALL or meeting.event.order < walked.order:
        return False
    site = _call_in_walk(walked, meeting)
    loop = _loop(walked)
    if site is None or loop is None or not _is_in(site, loop):
        return False
    named = _assigned_from(loop)
    if meeting.kind == "forward" and isinstance(site.node, cst.Call):
        return _mentions(site.node.func, named)  # one module gathers the same for any input
    return _mentions(site.node, named)


def _call_in_walk(walked: Iterated, meeting: Meeting) -> Site | None:
    """The meeting, or the call that leads to it, in the function that walks."""
    depth = len(walked.moment.calls)
    path = (*meeting.event.moment.calls, meeting.event.at)
    if depth >= len(path) or any(
        mine.node is not its.node for mine, its in zip(walked.moment.calls, path, strict=False)
    ):
        return None
    return path[depth] if path[depth].source is walked.at.source else None


def _loop(walked: Iterated) -> Walk | None:
    """The loop that walks it."""
    for around in Layout.of(walked.at.source).ancestors(walked.at.node):
        if isinstance(around, cst.For | cst.CompFor):
            return around if around.iter is walked.at.node else None
    return None


def _is_in(site: Site, loop: Walk) -> bool:
    """Whether a place is in the body of a loop, or in what a comprehension makes."""
    layout = Layout.of(site.source)
    whole = loop.body if isinstance(loop, cst.For) else next(iter(layout.ancestors(loop)), None)
    return whole is not None and any(one is whole for one in layout.ancestors(site.node))


def _assigned_from(loop: Walk) -> set[str]:
    """The names that a loop gives its elements, and those that its body computes from them."""
    found = {one.value for one in walk(loop.target) if isinstance(one, cst.Name)}
    if isinstance(loop, cst.For):
        for one in walk(loop.body):
            if isinstance(one, cst.Assign) and _mentions(one.value, found):
                targets = (name for target in one.targets for name in walk(target.target))
                found |= {name.value for name in targets if isinstance(name, cst.Name)}
    return found


def _mentions(node: cst.CSTNode, names: set[str]) -> bool:
    return any(isinstance(one, cst.Name) and one.value in names for one in walk(node))


def _stands_in_call(walked: Iterated, group: Sharded) -> bool:
    """Whether a comprehension over the set makes the list of modules of one call."""
    call = call_of(group.at)
    if call is None or len(group.modules) < 2 or group.at.source is not walked.at.source:
        return False
    return any(one is walked.at.node for argument in call.args[:1] for one in walk(argument))


def _sorted(trace: Trace, walked: Iterated) -> Fix | None:
    """``sorted(names)`` where all elements are texts."""
    held = [one for _, one in trace.memory.entries(walked.over)]
    if not all(isinstance(one, Literal) and isinstance(one.value, str) for one in held):
        return None
    node = walked.at.node
    edit = Rewrite(walked.at.source, node, lambda new: f"sorted({new(node)})")
    return Fix(
        "walk the names in order", (edit,), "unsafe", "the rounds come in another order then"
    )
