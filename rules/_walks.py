"""Loops over `modules()` that shard what passes a test: which modules they reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fsdp2lint.api import External, Instance, Part, Round, Trace, Value, lineage

from ._shared import Shard, class_name, parts_of, shards

_WALKS = (".modules()", ".named_modules()", ".children()", ".named_children()")


@dataclass(frozen=True, slots=True)
class Walk:
    """A loop over the modules below ``root`` that shards those of some classes."""

    root: Value
    classes: tuple[Value, ...]
    deep: bool
    """Whether it goes below the direct children, and begins with the root itself."""
    inside_out: bool
    """Whether it goes in reversed order, children first."""


def walk_of(trace: Trace, shard: Shard) -> Walk | None:
    """The loop that a sharding stands in, when its only test is one of the element's class.

    Without a test in sight the elements may come from a list that was filtered before.
    """
    element, seen = shard.module, None
    while isinstance(element, Part) and element.key not in _WALKS:
        if isinstance(element.key, Round):
            seen = element
        elif element.key != "[1]":
            return None
        element = element.owner
    if seen is None or not isinstance(element, Part):
        return None
    asked = [c for c in shard.guards.clauses if any(_asks(g.test, element) for g in c)]
    if len(asked) != 1 or len(asked[0]) != 1:
        return None
    (guard,) = asked[0]
    classes = _classes(guard.test, shard.module)
    if classes is None or not guard.taken:
        return None
    deep = element.key in _WALKS[:2]
    return Walk(element.owner, classes, deep, _backwards(trace, shard, seen))


def _backwards(trace: Trace, shard: Shard, seen: Part) -> bool:
    """Whether a later round of the walk came before an earlier one."""
    for other in shards(trace):
        if other.event.at.node is shard.event.at.node and other.module is not shard.module:
            theirs = other.module
            while isinstance(theirs, Part) and not isinstance(theirs.key, Round):
                theirs = theirs.owner
            if isinstance(theirs, Part) and theirs.owner is seen.owner:
                mine, their = seen.key, theirs.key
                if isinstance(mine, Round) and isinstance(their, Round):
                    return (mine.number < their.number) is (shard.order > other.order)
    return True


def _asks(test: Value | None, walked: Value) -> bool:
    """Whether a test is about the elements of a walk."""
    while isinstance(test, Part):
        if test is walked:
            return True
        if isinstance(test.key, tuple) and any(
            _asks(o, walked) for o in test.key if isinstance(o, Value)
        ):
            return True
        test = test.owner
    return False


def _classes(test: Value, element: Value) -> tuple[Value, ...] | None:
    """The classes of ``isinstance(element, …)``."""
    if not isinstance(test, Part) or not isinstance(test.key, tuple) or test.owner is not element:
        return None
    how, *classes = test.key
    found = tuple(c for c in classes if isinstance(c, Value))
    return found if how == "isinstance" and len(found) == len(classes) else None


def reached(trace: Trace, walk: Walk) -> Iterator[Value]:
    """The modules in sight that a walk surely shards, parents first."""
    modules = [walk.root, *_below(trace, walk.root)] if walk.deep else parts_of(trace, walk.root)
    for module in modules:
        if any(_is_a(module, c) for c in walk.classes):
            yield module


def reaches(trace: Trace, walk: Walk, module: Value) -> bool:
    """Whether a walk surely shards ``module``."""
    return any(m is module for m in reached(trace, walk))


def _below(trace: Trace, module: Value) -> list[Value]:
    found: list[Value] = []
    todo = list(reversed(parts_of(trace, module)))
    while todo:
        one = todo.pop()
        if one not in found:
            found.append(one)
            todo.extend(reversed(parts_of(trace, one)))
    return found


def _is_a(module: Value, cls: Value) -> bool:
    if isinstance(cls, External):
        return bool(class_name(module)) and class_name(module) == cls.name
    return isinstance(module, Instance) and any(c is cls for c in lineage(module.cls))
