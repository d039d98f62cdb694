"""What the script has stored where: names, attributes, entries of containers.

A variable holds its bindings with the guards under which each was made. Reading drops those that the
present guards exclude and stops at the first that surely holds; several left are an :class:`Either`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fsdp2lint.model.guards import ALWAYS, Clause, Guards, either, negated
from fsdp2lint.model.values import (
    Bound,
    Container,
    Either,
    Instance,
    Literal,
    Module,
    Optimizer,
    Parameters,
    Part,
    Partial,
    StateDict,
    Unknown,
    Value,
    Wrapped,
    root,
)

if TYPE_CHECKING:
    from fsdp2lint.source.source import Site

Key = TypeVar("Key", bound=Hashable)

MAX_OPTIONS = 6
"""A name that can be more things than this is taken for its latest ones: of each kind of value, the last stands for those before it."""

MAX_REACH = 400
"""How many values are followed when something escapes."""


class Variable:
    """What one name (or attribute, or entry) can stand for."""

    __slots__ = ("_known", "bindings")

    def __init__(self) -> None:
        self.bindings: tuple[tuple[Guards, Value], ...] = ()
        self._known: dict[Guards, Value | None] | None = None

    def write(self, here: Guards, value: Value) -> None:
        """Bind under the guards ``here``; what it surely shadows is forgotten."""
        if here.impossible:
            return
        here = here.lasting
        self._known = None
        left = [(g, v) for g, v in self.bindings if not g.implies(here)] if here.clauses else []
        self.bindings = (*left, (here, value))

    def forget(self, here: Guards) -> None:
        """Delete the bindings that hold only where ``here`` holds."""
        if not here.impossible:
            here = here.lasting
            self._known = None
            self.bindings = tuple((g, v) for g, v in self.bindings if not g.implies(here))

    def value(self, here: Guards) -> Value | None:
        """What it stands for where ``here`` holds: one value, an Either of several, or nothing."""
        bindings = self.bindings
        if len(bindings) == 1:  # nearly always
            guards, value = bindings[0]
            return value if not guards.clauses or not guards.excludes(here) else None
        if self._known is None:
            self._known = {}
        elif here in self._known:
            return self._known[here]
        found = self._known[here] = choose(self.read(here), here)
        return found

    def read(self, here: Guards) -> list[tuple[Guards, Value]]:
        """The bindings that can hold ``here``, latest first; the last one surely holds, if any does."""
        found = []
        for guards, value in reversed(self.bindings):
            if guards.excludes(here):
                continue
            found.append((guards, value))
            if here.implies(guards):
                break
        return found


ANNOTATED = "the class of its annotation"
"""The key under which a memory keeps the project's class that an argument of unknown origin is said to be of."""


BOUND = "the bound of a type variable"
"""The key under which a memory keeps the class that ``TypeVar("M", bound=Model)`` stands for at the least."""


GIVEN = "the parameters that the base class was given"
"""The key under which a memory keeps what an optimizer of the project hands to torch's ``__init__``."""


MADE = "the object of the project's class"
"""The key under which a memory keeps what an optimizer of the project is besides an optimizer of torch."""


EVERYWHERE = ("[]", "everywhere")
"""The key under which a memory keeps what ``[config] * layers`` holds at each index."""


NOT_YET = sys.maxsize
"""An age that nothing has."""


class Making(NamedTuple):
    """What code that was not followed got: parameters, where, and by the name of what was called."""

    site: Site
    by: str
    over: tuple[Parameters, ...]


class Memory:
    """The stores of one run: attributes and entries by their owner, and who escaped."""

    def __init__(self) -> None:
        self.fields: dict[Value, dict[Hashable, Variable]] = {}
        self.held_by: dict[Value, dict[Value, None]] = {}
        self.out: set[Value] = set()
        self.lent: set[Value] = set()
        """Models and optimizers of which only parameters or states escaped: what is done to the tensors is
        not known, but from these nobody comes to the objects."""
        self.foreign: set[Value] = set()
        self.strangers: set[Value] = set()
        """Objects of which an annotation alone says the class."""
        self.begun: dict[Value, int] = {}
        """The stage in which an object was made, where there are several (:attr:`Moment.stage`)."""
        self.oldest = NOT_YET
        """The age of the oldest list or dictionary in which something was stored since somebody set this; 0 where it was
        in something else."""
        self.twins: dict[Value, Value] = {}
        """Values of which nothing is known, as the objects that annotations say they are."""
        self.made_of: dict[Value, Making] = {}
        """What code that was not followed made, when it was given parameters."""
        self.tags: set[str] = set()
        """The names of attributes that the script has put on parameters."""
        self.names: dict[Value, dict[Hashable, Value]] = {}
        """For dictionaries that loops fill under names that are not known: which constant each of those stands for."""
        self.loose: set[Value] = set()
        """Objects of which attributes were set under names that are not known."""

    def write(
        self,
        owner: Value,
        key: Hashable,
        here: Guards,
        value: Value,
        before: Value | None = None,
    ) -> None:
        """Store ``value`` as the attribute or entry ``key`` of ``owner``.

        ``before`` is there already where nothing was stored yet, and stays where ``here`` does not hold.
        """
        made = age_of(owner)
        if made < self.oldest and not here.impossible and not _is_entry_of_data(owner, key, value):
            self.oldest = made
        fields = self.fields.get(owner)
        if fields is None:
            fields = self.fields[owner] = {}
        variable = fields.get(key)
        if variable is None:
            variable = fields[key] = Variable()
            if before is not None:
                variable.write(ALWAYS, before)
        variable.write(here, value)
        self.hold(owner, value)

    def forget(self, owner: Value, key: Hashable, here: Guards) -> None:
        """Delete the attribute or entry ``key`` of ``owner``, as far as it was made under ``here``."""
        variable = self.fields.get(owner, {}).get(key)
        if variable is not None:
            variable.forget(here)

    def hold(self, owner: Value, value: Value) -> None:
        """Remember that ``value`` can be reached from ``owner``."""
        for one in [v for _, v in value.options] if isinstance(value, Either) else (value,):
            holders = self.held_by.get(one)
            if holders is None:
                holders = self.held_by[one] = {}
            if one is not owner:
                holders[owner] = None

    def read(self, owner: Value, key: Hashable, here: Guards) -> Value | None:
        """The attribute or entry ``key`` of ``owner``; None when nothing was ever stored."""
        fields = self.fields.get(owner)
        if fields is None:
            return None
        variable = fields.get(key)
        return None if variable is None else variable.value(here)

    def entries(self, owner: Value, here: Guards = ALWAYS) -> Iterator[tuple[Hashable, Value]]:
        """The attributes or entries of ``owner`` that can be there, in the order of their making."""
        fields = self.fields.get(owner)
        for key, variable in fields.items() if fields is not None else ():
            value = variable.value(here)
            if value is not None:
                yield key, value

    def is_blank(self, value: Value) -> bool:
        """Whether nothing was stored in a value, nor made of parameters by whoever gave it."""
        return value not in self.fields and value not in self.made_of

    def children(self, module: Value) -> Iterator[tuple[str, Value]]:
        """The submodules that the script has assigned to a module or put into a module list."""
        for key, value in self.entries(module):
            for one in [v for _, v in value.options] if isinstance(value, Either) else [value]:
                if isinstance(one, Module | Wrapped):
                    yield str(key), one

    def escape(self, value: Value) -> bool:
        """Let a value, and all that can be reached from it, escape; True if it had not before."""
        if value in self.out:
            return False
        todo, seen = [value], 0
        while todo and seen < MAX_REACH:
            one = todo.pop()
            if one in self.out or isinstance(one, Literal):
                continue
            seen += 1
            self.out.add(one)
            if isinstance(one, Parameters | StateDict):
                self.lent.add(one.of)
            elif isinstance(one, Part) and one.key in _TENSORS:
                self.lent.add(root(one))  # a tensor does not know whose it is
            else:
                todo.extend(parts_of(one))
            todo.extend(v for _, v in self.entries(one))
        return True

    def owned(self, value: Value, *, lent: bool = False) -> bool:
        """Whether a value was made by resolved code and never left it, nor did anything that holds it.

        With ``lent`` its parameters and its state may have left.
        """
        if isinstance(value, Either):
            return all(self.owned(v, lent=lent) for _, v in value.options)
        root = value
        while isinstance(root, Part):
            if root in self.out or (root in self.lent and not lent):
                return False
            root = root.owner
        if not isinstance(
            root, Instance | Wrapped | Optimizer | Parameters | StateDict | Container
        ):
            return False
        holders = self.holders(root)
        return not any(
            h in self.out or h in self.foreign or (h in self.lent and not lent) for h in holders
        )

    def holders(self, value: Value) -> Iterator[Value]:
        """``value`` and everything through which it can be reached."""
        todo, seen = [value], {value}
        while todo:
            one = todo.pop()
            yield one
            above = list(self.held_by.get(one, ()))
            if isinstance(one, Part):
                above.append(one.owner)
            for holder in above:
                if holder not in seen and len(seen) < MAX_REACH:
                    seen.add(holder)
                    todo.append(holder)

    def inside(self, part: Value, whole: Value) -> bool:
        """Whether ``part`` is ``whole`` or hangs below it through modules, lists of modules and parts."""
        return whole in self.around(part)

    def around(self, part: Value) -> set[Value]:
        """``part`` and all that it hangs below, through modules, lists of modules and parts."""
        todo, found = [part], {part}
        while todo:
            one = todo.pop()
            above: list[Value] = [
                h for h in self.held_by.get(one, ()) if isinstance(h, Module | Wrapped | Container)
            ]
            if isinstance(one, Part):
                above.append(one.owner)
            if isinstance(one, Wrapped):
                above.append(one.of)
            for holder in above:
                if holder not in found:
                    if len(found) < MAX_REACH:
                        todo.append(holder)
                    found.add(holder)
        return found


def _is_entry_of_data(owner: Value, key: Hashable, value: Value) -> bool:
    """Whether data of which nothing is known is stored at a place in such data: ``logits[mask] = scores``."""
    of_data = isinstance(owner, Part | Unknown) and isinstance(value, Part | Unknown)
    return of_data and (isinstance(key, tuple) or str(key).startswith("["))


def age_of(owner: Value) -> int:
    """When a list or a dictionary was made, or the first of several; 0 for anything else."""
    if isinstance(owner, Container):
        return owner.age
    return min(age_of(one) for _, one in owner.options) if isinstance(owner, Either) else 0


def choose(found: list[tuple[Guards, Value]], here: Guards, *, apart: bool = False) -> Value | None:
    """One value out of the bindings that can hold: itself when it is the only one, else an Either.

    Of bindings that are not ``apart``, whose guards do not exclude each other, an earlier one shadows the later ones.
    """
    if not found:
        return None
    if len(found) == 1:
        return found[0][1]
    flat: list[tuple[Guards, Value]] = []
    shadowed: frozenset[Clause] = frozenset()  # what must hold for none of the later bindings to
    last = len(found) - 1
    for number, (bound, value) in enumerate(found):
        guards = bound.also(shadowed) if shadowed else bound
        if isinstance(value, Either):
            flat.extend((guards.and_(g), v) for g, v in value.options if not g.excludes(here))
        else:
            flat.append((guards, value))
        if number < last and not apart:
            refused = negated(bound.since(here))  # by itself the same object each time
            shadowed = shadowed | refused if shadowed else refused
    distinct: dict[Value, Guards] = {}
    for guards, value in flat:
        if guards.impossible:
            continue
        if value not in distinct and len(distinct) == MAX_OPTIONS:
            value = _stands_for(value, distinct)
        known = distinct.get(value)
        if known is not None:
            guards = ALWAYS.also(either(known.since(ALWAYS), guards.since(ALWAYS)))
        distinct[value] = guards
    if not distinct:
        return None  # none of them can hold: nothing comes here
    if len(distinct) == 1:
        return next(iter(distinct))
    return Either(tuple((g, v) for v, g in distinct.items()))


def entries_of_one(
    each: Sequence[tuple[Guards, dict[Key, Value]]], missing: Callable[[Key], Value]
) -> Iterator[tuple[Key, Value]]:
    """The entries of one of several dictionaries: what only some of them hold may be ``missing``."""
    for key in dict.fromkeys(key for _, entries in each for key in entries):
        none = missing(key)
        found = [(guards, entries.get(key, none)) for guards, entries in each]
        same = {entry for _, entry in found}
        yield key, found[0][1] if len(same) == 1 else Either(tuple(found))


def _stands_for(value: Value, distinct: dict[Value, Guards]) -> Value:
    """The one of many options that is then said to hold where a value does: the last of its kind.

    A value of another kind than all of them takes the place of one of which there are several.
    """
    kinds: dict[object, list[Value]] = {}
    for one in distinct:
        kinds.setdefault(_kind(one), []).append(one)
    mine = kinds.get(_kind(value))
    if mine is not None:
        return mine[-1]
    several = next((same for same in reversed(kinds.values()) if len(same) > 1), None)
    if several is None:
        return next(reversed(distinct))
    kept, gone = several[-2:]
    both = either(distinct[kept].since(ALWAYS), distinct.pop(gone).since(ALWAYS))
    distinct[kept] = ALWAYS.also(both)
    return value


def _kind(value: Value) -> object:
    """What tells values apart that no rule takes for each other: a sharded model, and a plain one."""
    return type(value), getattr(value, "by", None)


_TENSORS = (".weight", ".bias", ".data", ".grad")
"""Attributes that are tensors of a module, or of a tensor."""


_TEXTS = ("format", "str", "repr", "len", "int", "float")
"""What makes a text or a number of a value: whoever gets that cannot reach the value."""


def parts_of(value: Value) -> Iterator[Value]:
    """The values from which ``value`` is made."""
    if isinstance(value, Wrapped):
        yield value.of
    elif isinstance(value, Optimizer):
        yield from value.over
    elif isinstance(value, Either):
        yield from (v for _, v in value.options)
    elif isinstance(value, Bound):
        yield value.receiver
    elif isinstance(value, Partial):
        yield from value.args
        yield from value.keywords.values()
    elif isinstance(value, Part) and value.operation not in _TEXTS:
        yield value.owner
