"""The same module is sharded twice.

## What it does

Finds `fully_shard` calls on a module that an earlier call on the same path has sharded.

## Why is this bad

`fully_shard` can be applied to a module once: the second call raises AssertionError.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
 for layer in model:
     fully_shard(layer)
-fully_shard(model[1])
 fully_shard(model)
```

## Forms

- Found: a helper function that is called again.
- Found: a part that the constructor has sharded.
- Not found: a loop over `modules()` in reverse, which reaches the root too.
- Not found: one block that a list holds several times.

## Fix safety

Safe: the second call, which could not run, is removed when it is a statement of its own.

## Known limits

Two loops over the children of one model of unknown class are recognised when they walk the same
expression; a loop over `modules()` that reaches the root only when its test cannot exclude it. Where a test asks a module
whether to shard it (its size, whether it has parameters of its own), the other call may be for those that it leaves out.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/_composable/contract.py` ("can only be applied to a module once")
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Event,
    Finding,
    Fix,
    Layout,
    Remove,
    Trace,
    Value,
    parts_along,
    rule,
    walk,
)

from .._common.fixes import call_of, first_argument, once, stands_alone
from .._common.fixes_moving import bound_names
from .._common.shared import Shard, shards, shards_before, together
from .._common.tensors import chosen_by_class
from .._common.walks import reaches, walk_of


@rule(code="FSDP209", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Modules that two calls shard."""
    for shard in shards(trace):
        first = _first(trace, shard)
        if first is None:
            continue
        said = shard.module.words()
        yield Finding(
            at=shard.event,
            message=f"`{said}` is sharded a second time: `fully_shard` raises AssertionError",
            because=((first.event, f"`{first.module.words()}` is sharded here already"),),
            fix=_remove(trace, shard, first),
        )


def _first(trace: Trace, shard: Shard) -> Shard | None:
    """The earlier sharding of the same module, by its own call or by a loop that reaches it."""
    walking = trace.derived(_walking)

    def may_be_the_same(one: Shard) -> bool:
        return one.module is shard.module or one.event in walking

    for earlier in shards_before(trace, shard.event, may_be_the_same):
        if not together(earlier.guards, shard.guards):
            continue
        if earlier.module is not shard.module:
            walk = walk_of(trace, earlier)
            if walk is not None and reaches(trace, walk, shard.module):
                return earlier
            continue
        if chosen_by_class(earlier, shard.guards) or chosen_by_class(shard, earlier.guards):
            continue
        if _picked(shard.module) or _sides_of_a_loop(earlier, shard) or _by_table(earlier, shard):
            continue
        if earlier.event.at.node is not shard.event.at.node and _asks_itself(earlier, shard):
            continue
        if _another_round(earlier, shard) and (earlier.guards != shard.guards or _of_loop(shard)):
            continue  # a test may let it pass only once; what a loop goes through is another one each time
        return earlier
    return None


def _walking(trace: Trace) -> frozenset[Event]:
    """The shardings in a walk whose test is known: each of them may shard more modules than its own."""
    return frozenset(one.event for one in shards(trace) if walk_of(trace, one) is not None)


def _sides_of_a_loop(earlier: Shard, shard: Shard) -> bool:
    """Whether a test of what a loop goes through sends it to one of the two calls: never the same to both."""
    paths = [(*one.event.calls, one.event.at) for one in (earlier, shard)]
    for mine, theirs in zip(*paths, strict=False):
        if mine.node is theirs.node:
            continue
        above = list(Layout.of(theirs.source).ancestors(theirs.node))
        looped = {n for a in above if isinstance(a, cst.For) for n in bound_names(a)}
        for around in Layout.of(mine.source).ancestors(mine.node):
            if isinstance(around, cst.If) and around in above:
                read = {n.value for n in walk(around.test) if isinstance(n, cst.Name)}
                return bool(read & looped)
        return False
    return False


def _asks_itself(*both: Shard) -> bool:
    """Whether a test asks the module whether to shard it: its size, whether it has parameters of its own."""
    for one in both:
        call = call_of(one.event.at)
        argument = None if call is None else first_argument(call)
        if not isinstance(argument, cst.Name):
            continue
        for around in Layout.of(one.event.at.source).ancestors(one.event.at.node):
            if isinstance(around, cst.FunctionDef):
                break
            if isinstance(around, cst.If) and _is_read(argument.value, around.test):
                return True
    return False


def _is_read(name: str, test: cst.BaseExpression) -> bool:
    """Whether a test reads a name other than by `isinstance`, which the trace answers."""
    asked = [
        node
        for node in walk(test)
        if isinstance(node, cst.Call)
        and isinstance(node.func, cst.Name)
        and node.func.value == "isinstance"
    ]
    in_tests = {id(inner) for call in asked for inner in walk(call)}
    return any(
        isinstance(node, cst.Name) and node.value == name and id(node) not in in_tests
        for node in walk(test)
    )


def _by_table(*both: Shard) -> bool:
    """Whether a function of a table was called, which one depends on the key."""
    sites = [site for one in both for site in one.event.calls]
    return any(
        isinstance(s.node, cst.Call) and isinstance(s.node.func, cst.Subscript) for s in sites
    )


def _another_round(earlier: Shard, shard: Shard) -> bool:
    """Whether both are one call, made again by a loop around it."""
    one, other = earlier.event, shard.event
    return one.at.node is other.at.node and one.calls == other.calls


def _of_loop(shard: Shard) -> bool:
    """Whether the call, or one that led to it, is given what a loop around it goes through."""
    for site in (*shard.event.calls, shard.event.at):
        read = {n.value for n in walk(site.node) if isinstance(n, cst.Name)}
        for around in Layout.of(site.source).ancestors(site.node):
            if isinstance(around, cst.FunctionDef):
                break
            if isinstance(around, cst.For) and read & bound_names(around):
                return True
    return False


def _picked(module: Value) -> bool:
    """Whether this is an element of a walk, where each loop picks others by tests of its own."""
    return any(isinstance(p.key, str) and p.key.endswith("()") for p in parts_along(module))


def _remove(trace: Trace, shard: Shard, first: Shard) -> Fix | None:
    """Without the second call."""
    site = shard.event.at
    if stands_alone(site) is None or first.event.at.node is site.node or not once(trace, shard):
        return None
    if not shard.guards.implies(first.guards):
        return None
    return Fix("remove the second call", (Remove(site.source, site.node),), "safe")
