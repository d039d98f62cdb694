"""Loops over `modules()` that shard what passes a test: which modules they reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fsdp2lint.api import (
    Class,
    Container,
    Event,
    External,
    Guard,
    Instance,
    Literal,
    Logic,
    Not,
    Parameters,
    Part,
    Round,
    Trace,
    Value,
    lineage,
)

from .shared import Shard, parts_of, shards

WALKS = (".modules()", ".named_modules()", ".children()", ".named_children()")


@dataclass(frozen=True, slots=True)
class Walk:
    """A loop over the modules below ``root`` that shards those of some classes."""

    root: Value
    classes: tuple[Value | str, ...]
    """The classes that its test names, some by their bare name."""
    derived: bool
    """Whether it takes modules of classes that derive from these, too."""
    deep: bool
    """Whether it goes below the direct children, and begins with the root itself."""
    inside_out: bool
    """Whether it goes in reversed order, children first."""


def walk_of(trace: Trace, shard: Shard, *, at_most: bool = False) -> Walk | None:
    """The loop that a sharding is in, when its only test is one of the element's class.

    Without a resolved test the elements may come from a list that was filtered before. With ``at_most`` there may be
    more tests beside: then the loop shards modules of these classes only, and perhaps not all of them.
    """
    element, seen = shard.module, None
    while isinstance(element, Part) and element.key not in WALKS:
        if isinstance(element.key, Round):
            seen = element
        elif element.key != "[1]":
            return None
        element = element.owner
    if seen is None or not isinstance(element, Part):
        return None
    asked = [c for c in shard.guards.clauses if any(_asks(trace, g.test, element) for g in c)]
    known = [_Asked.of(trace, clause, shard.module) for clause in asked]
    tests = [one for one in known if one is not None and (one.exact or at_most)]
    if not tests or (len(asked) > 1 and not at_most):
        return None
    deep = element.key in WALKS[:2]
    test = tests[0]
    inside_out = _backwards(trace, shard, seen)
    return Walk(element.owner, test.classes, test.derived, deep, inside_out)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A test of the class of a module, as a disjunction: any of these will do."""

    classes: tuple[Value | str, ...]
    derived: bool
    """Whether modules of classes that derive from these will do, too."""
    exact: bool
    """Whether all such modules will do."""

    @classmethod
    def of(cls, trace: Trace, clause: Iterable[Guard], element: Value) -> _Asked | None:
        """What a clause says of the class of ``element``; None when it may be true for others too."""
        found: list[Value | str] = []
        derived = set[bool]()
        todo = [(guard.test, guard.taken) for guard in clause]
        while todo:
            test, taken = todo.pop()
            owner = test.owner if isinstance(test, Part) else None
            how, given = test.operation, test.operands
            if isinstance(test, Logic) and test.operator == "or" and taken:
                todo += [(one, taken) for one in test.operands]
            elif how == "any" and isinstance(owner, Container) and taken:
                todo += [(one, taken) for _, one in trace.memory.entries(owner)]
            elif how == "isinstance" and owner is element and taken:
                found += given
                derived.add(True)
            elif owner in _classes_of(element) and how in ("is", "==", "in") and taken:
                found += _named(trace, given)
                derived.add(False)
            else:
                return None
        if not found or not all(isinstance(one, Class | External | str) for one in found):
            return None
        return cls(tuple(found), True in derived, len(derived) == 1)


def _classes_of(element: Value) -> tuple[Value, Value]:
    """The class of a module, and the name of it."""
    cls = element.part(".__class__")
    return cls, cls.part(".__name__")


def _named(trace: Trace, given: Sequence[object]) -> list[Value | str]:
    """The classes that something is compared with, or their names."""
    found: list[Value | str] = []
    for one in given:
        if isinstance(one, Container):
            found += _named(trace, [entry for _, entry in trace.memory.entries(one)])
        elif isinstance(one, Literal) and isinstance(one.value, str):
            found.append(one.value)
        elif isinstance(one, Literal) and isinstance(one.value, tuple):
            found += [name for name in one.value if isinstance(name, str)]
        elif isinstance(one, Value):
            found.append(one)
    return found


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


def _asks(trace: Trace, test: Value | None, walked: Value) -> bool:
    """Whether a test is about the elements of a walk."""
    if isinstance(test, Logic):
        return any(_asks(trace, one, walked) for one in test.operands)
    if isinstance(test, Not):
        return _asks(trace, test.test, walked)
    while isinstance(test, Part):
        if test is walked:
            return True
        if any(_asks(trace, one, walked) for one in test.made_of[1:]):
            return True
        if isinstance(test.owner, Container):
            return any(_asks(trace, one, walked) for _, one in trace.memory.entries(test.owner))
        if isinstance(test.owner, Parameters):
            return _asks(trace, test.owner.of, walked)
        test = test.owner
    return False


_BASES = ("RNNBase", "Module")
"""Classes of torch from which others of torch derive, beside those whose names begin with ``_``."""


def passes_over(
    trace: Trace, event: Event, value: Value | None, layer: Value, itself: bool = False
) -> bool:
    """Whether a value is (a part of) what a walk over modules comes to, and the tests above an event leave ``layer``
    and all below it out; only the layer ``itself``, when that is asked.
    """
    element = value
    while isinstance(element, Part) and not isinstance(element.key, Round):
        element = element.owner
    walk = element.owner if isinstance(element, Part) else None
    if not isinstance(walk, Part) or walk.key not in WALKS or element is None:
        return False
    if walk.key in (".named_modules()", ".named_children()"):
        element = element.part("[1]")
    for clause in event.guards.clauses:
        asked = _Asked.of(trace, clause, element)
        if asked is not None and not any(map(_is_base, asked.classes)):
            inside = [layer] if itself else [layer, *_below(trace, layer)]
            if not any(_is_a(one, c, asked.derived) for one in inside for c in asked.classes):
                return True
    return False


def _is_base(cls: Value | str) -> bool:
    last = cls.name.rpartition(".")[2] if isinstance(cls, External) else ""
    return last in _BASES or last.startswith("_")


def reached(trace: Trace, walk: Walk) -> Iterator[Value]:
    """The resolved modules that a walk shards, parents first."""
    modules = [walk.root, *_below(trace, walk.root)] if walk.deep else parts_of(trace, walk.root)
    for module in modules:
        if any(_is_a(module, c, walk.derived) for c in walk.classes):
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


def _is_a(module: Value, cls: Value | str, derived: bool) -> bool:
    if not isinstance(module, Instance):
        return False
    classes = lineage(module.cls) if derived else [module.cls]
    if isinstance(cls, str):
        return any(one.words().rpartition(".")[2] == cls for one in classes)
    named = cls.name if isinstance(cls, External) else ""
    return any(one is cls or (isinstance(one, External) and one.name == named) for one in classes)
