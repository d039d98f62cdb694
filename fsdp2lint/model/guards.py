"""Under which conditions something happens.

A script asks ``if cfg.fsdp:`` five times and ``if rank == 0:`` ten times. The interpreter walks both
sides of each test and remembers on which side it stands. A :class:`Guard` is one such side: *this
test came out this way*. What must hold at a point of the run is a conjunction of clauses, each clause
a disjunction of guards (conjunctive normal form), so that all of these can be said exactly:

    if a and b: ...             {a} {b}
    else: ...                   {not a, not b}
    if a:                       after the statement: {not a, not b}
        if b: return

A test is known by the *value* that was tested. Values are interned, so equal tests are equal objects
and correlate without any cleverness: ``cfg.fsdp`` on line 10 excludes ``not cfg.fsdp`` on line 90.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fsdp2lint.model.value import is_choice

if TYPE_CHECKING:
    from fsdp2lint.model.values import Value
    from fsdp2lint.source import Site

MAX_CLAUSE = 4
"""Longer disjunctions are forgotten: they exclude next to nothing."""

MAX_CLAUSES = 24
"""So many clauses at most come out of a disjunction of conjunctions; larger ones are forgotten."""


class Guard:
    """One side of one test. Equality is by test and side; where it was asked is kept for the reader."""

    __slots__ = ("_hash", "_inverse", "site", "taken", "test")

    def __init__(self, test: Value, taken: bool, site: Site | None = None) -> None:
        self.test = test
        self.taken = taken
        self.site = site
        self._hash = hash((id(test), taken))
        self._inverse: Guard | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guard) and self.test is other.test and self.taken is other.taken

    def __hash__(self) -> int:
        return self._hash

    def __invert__(self) -> Guard:
        if self._inverse is None:
            self._inverse = Guard(self.test, not self.taken, self.site)
            self._inverse._inverse = self
        return self._inverse

    def words(self) -> str:
        """``cfg.fsdp`` or ``not cfg.fsdp``, in the script's own words."""
        said = self.test.words()
        if self.taken:
            return said
        return f"not ({said})" if " " in said else f"not {said}"

    def __repr__(self) -> str:
        return f"<{self.words()}>"


Clause = frozenset[Guard]


class Guards:
    """What must hold: a conjunction of clauses. Immutable."""

    __slots__ = ("_joined", "_units", "clauses", "impossible")

    def __init__(self, clauses: frozenset[Clause] = frozenset(), impossible: bool = False) -> None:
        self.clauses = clauses
        self.impossible = impossible
        self._units: dict[Value, Guard] | None = None
        self._joined: dict[int, tuple[frozenset[Clause], Guards]] = {}

    @property
    def units(self) -> dict[Value, Guard]:
        """The guards that hold for certain, by their test."""
        if self._units is None:
            self._units = {g.test: g for c in self.clauses if len(c) == 1 for g in c}
        return self._units

    def __iter__(self) -> Iterator[Guard]:
        return iter(self.units.values())

    def __bool__(self) -> bool:
        return self.impossible or bool(self.clauses)

    def also(self, clauses: frozenset[Clause]) -> Guards:
        """These guards and ``clauses`` beside them; impossible when they contradict."""
        if self.impossible or not clauses:
            return self
        if not self.clauses:
            return self._join(clauses)
        # by identity: equal guards that were asked at different places must stay apart
        known = self._joined.get(id(clauses))
        if known is None:
            known = self._joined[id(clauses)] = (clauses, self._join(clauses))
        return known[1]

    def _join(self, clauses: frozenset[Clause]) -> Guards:
        if clauses <= self.clauses:
            return self
        joined = Guards(self.clauses | clauses)
        return NEVER if joined._contradicts_itself() else joined

    def and_(self, other: Guards) -> Guards:
        """Both hold."""
        if self.impossible or other.impossible:
            return NEVER
        return self.also(other.clauses) if other.clauses else self

    def since(self, earlier: Guards) -> frozenset[Clause]:
        """The clauses that were added to ``earlier``."""
        return self.clauses - earlier.clauses

    def excludes(self, other: Guards) -> bool:
        """Whether both can never hold in one run."""
        if self.impossible or other.impossible:
            return True
        if not self.clauses or not other.clauses or self is other:
            return False
        return self.and_(other).impossible

    def implies(self, other: Guards) -> bool:
        """Whether wherever these hold, ``other`` holds too."""
        if self.impossible or other.clauses <= self.clauses:
            return True
        if other.impossible:
            return False
        units = self.units
        return all(
            clause in self.clauses or any(units.get(g.test) == g for g in clause)
            for clause in other.clauses
        )

    def side(self, test: Value) -> bool | None:
        """Which way ``test`` is known to have come out, if it is."""
        guard = self.units.get(test)
        return None if guard is None else guard.taken

    def words(self) -> str:
        """``when cfg.fsdp and rank == 0``; empty when nothing need hold."""
        if self.impossible:
            return "never"
        said = [
            " or ".join(sorted(g.words() for g in clause))
            if len(clause) == 1
            else "(" + " or ".join(sorted(g.words() for g in clause)) + ")"
            for clause in self.clauses
            if not any(is_choice(g.test) for g in clause)
        ]
        return "when " + " and ".join(sorted(said)) if said else ""

    def __repr__(self) -> str:
        return f"Guards({self.words() or 'always'})"

    def _contradicts_itself(self) -> bool:
        units: dict[Value, Guard] = {}
        for clause in self.clauses:
            if len(clause) == 1:
                (guard,) = clause
                if units.setdefault(guard.test, guard).taken is not guard.taken:
                    return True
        if _two_constants(units):
            return True
        self._units = units
        return _no_way_out([c for c in self.clauses if len(c) > 1], units)


def _no_way_out(wide: list[Clause], units: dict[Value, Guard]) -> bool:
    """Whether what holds for certain, and what follows from it, leaves a clause without a guard that may hold."""
    known = dict(units)
    while True:
        left: list[Clause] = []
        for clause in wide:
            if any(known.get(g.test) == g for g in clause):
                continue
            open_ = [g for g in clause if g.test not in known]
            if not open_:
                return True
            if len(open_) == 1:
                known[open_[0].test] = open_[0]
            else:
                left.append(clause)
        if len(left) == len(wide):
            return False
        wide = left


def _two_constants(units: dict[Value, Guard]) -> bool:
    """Whether one value is said to equal two different constants."""
    said: dict[Value, object] = {}
    for test, guard in units.items():
        key = test.key
        if not guard.taken or test.owner is None or not isinstance(key, tuple):
            continue
        if key[0] in ("==", "is") and hasattr(key[1], "value"):
            constant = key[1].value
            if said.setdefault(test.owner, constant) != constant:
                return True
    return False


ALWAYS = Guards()
NEVER = Guards(impossible=True)


def unit(guard: Guard) -> frozenset[Clause]:
    """The clauses that say just ``guard``."""
    return frozenset((frozenset((guard,)),))


def either(left: frozenset[Clause], right: frozenset[Clause]) -> frozenset[Clause]:
    """The clauses of "all of ``left`` or all of ``right``"; what grows too long is forgotten."""
    if len(left) * len(right) > MAX_CLAUSES:
        return left & right
    joined = (a | b for a in left for b in right)
    return frozenset(
        clause
        for clause in joined
        if len(clause) <= MAX_CLAUSE and not any(~g in clause for g in clause)
    )


def negated(clauses: frozenset[Clause]) -> frozenset[Clause]:
    """The clauses of "not all of these"; nothing when that cannot be said in short."""
    if not clauses or math.prod(map(len, clauses)) > MAX_CLAUSES:
        return frozenset()
    if all(len(clause) == 1 for clause in clauses):
        if len(clauses) > MAX_CLAUSE:
            return frozenset()
        return frozenset((frozenset(~g for clause in clauses for g in clause),))
    result: frozenset[Clause] | None = None
    for clause in clauses:
        sides = frozenset(frozenset((~g,)) for g in clause)
        result = sides if result is None else either(result, sides)
    return result or frozenset()
