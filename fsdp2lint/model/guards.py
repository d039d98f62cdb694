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

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fsdp2lint.model.value import Part, is_choice, is_whole, note, tests_in

if TYPE_CHECKING:
    from fsdp2lint.model.values import Value
    from fsdp2lint.source import Site

MAX_CLAUSE = 4
"""Longer disjunctions are forgotten: they exclude next to nothing."""

MAX_CLAUSES = 24
"""So many clauses at most come out of a disjunction of conjunctions; larger ones are forgotten."""


class Guard:
    """One side of one test. Equality is by test and side; where it was asked is kept for the reader."""

    __slots__ = ("_hash", "_inverse", "_unit", "equals", "finds", "site", "taken", "test")

    def __init__(self, test: Value, taken: bool, site: Site | None = None) -> None:
        self.test = test
        self.taken = taken
        self.site = site
        self._hash = hash((id(test), taken))
        self._inverse: Guard | None = None
        self._unit: frozenset[Clause] | None = None
        self.equals = _equality(test) if taken else None
        """The value that the test then equals, and the constant; None when it says no such thing."""
        self.finds = _finding(test)
        """The value that is searched for a text, and the text; None when the test does no such thing."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guard) and self.test is other.test and self.taken is other.taken

    def __hash__(self) -> int:
        return self._hash

    def __invert__(self) -> Guard:
        if self._inverse is None:
            self._inverse = Guard(self.test, not self.taken, self.site)
            self._inverse._inverse = self
            note(self)
        return self._inverse

    @property
    def unit(self) -> frozenset[Clause]:
        """The clauses that say just this, the same object each time."""
        if self._unit is None:
            self._unit = frozenset((frozenset((self,)),))
            note(self)
        return self._unit

    def forget(self) -> None:
        """Let go of what knows this guard and is known by it."""
        self._inverse = self._unit = None

    def words(self) -> str:
        """``cfg.fsdp`` or ``not cfg.fsdp``, in the script's own words."""
        said = self.test.words()
        if self.taken:
            return f"({said})" if is_whole(self.test) else said
        return f"not ({said})" if " " in said else f"not {said}"

    def __repr__(self) -> str:
        return f"<{self.words()}>"


Clause = frozenset[Guard]


class Guards:
    """What must hold: a conjunction of clauses. Immutable."""

    __slots__ = ("_joined", "_longer", "_open", "_units", "clauses", "impossible")

    def __init__(self, clauses: frozenset[Clause] = frozenset(), impossible: bool = False) -> None:
        self.clauses = clauses
        self.impossible = impossible
        self._units: dict[Value, Guard] | None = None
        self._longer: tuple[Clause, ...] | None = None
        self._open: frozenset[Value] | None = None
        self._joined: dict[int, tuple[frozenset[Clause], Guards]] | None = None

    @property
    def units(self) -> dict[Value, Guard]:
        """The guards that hold for certain, by their test."""
        if self._units is None:
            self._units = {g.test: g for c in self.clauses if len(c) == 1 for g in c}
        return self._units

    @property
    def longer(self) -> tuple[Clause, ...]:
        """The clauses of several guards."""
        if self._longer is None:
            self._longer = tuple(c for c in self.clauses if len(c) > 1)
        return self._longer

    @property
    def open(self) -> frozenset[Value]:
        """The tests of which the clauses of several guards speak."""
        if self._open is None:
            self._open = frozenset(guard.test for clause in self.longer for guard in clause)
        return self._open

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
        if self._joined is None:
            self._joined = {}
            _remembering.append(self)
        known = self._joined.get(id(clauses))
        if known is None:
            known = self._joined[id(clauses)] = (clauses, self._join(clauses))
        return known[1]

    def _join(self, clauses: frozenset[Clause]) -> Guards:
        added = clauses - self.clauses
        if not added:
            return self
        grown = self._with(added)
        if grown is None:
            return NEVER
        joined = Guards(self.clauses | added)
        joined._units, joined._longer = grown
        return joined

    def _with(
        self, added: frozenset[Clause]
    ) -> tuple[dict[Value, Guard], tuple[Clause, ...]] | None:
        """The units and the longer clauses with ``added`` among them; None when there is a contradiction.

        There is none among the clauses of before, so only what is new has to be looked at.
        """
        units = self.units
        fresh: dict[Value, Guard] = {}
        longer = []
        for clause in added:
            if len(clause) > 1:
                longer.append(clause)
                continue
            (guard,) = clause
            test = guard.test
            if test in units or fresh.setdefault(test, guard) is not guard:
                return None  # what is known already is not new: it is the other side
        every = (*self.longer, *longer) if longer else self.longer
        if fresh:
            if _two_constants(units, fresh):
                return None
            touched = not self.open.isdisjoint(fresh)
            units = {**units, **fresh}
        else:
            touched = False
        if not touched and longer:
            tests = [guard.test for clause in longer for guard in clause]
            touched = any(test in units or test in self.open for test in tests)
            touched = touched or len(set(tests)) < len(tests)
        return None if touched and _no_way_out(every, units) else (units, every)

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
        added = other.clauses - self.clauses
        if len(added) != 1:
            return bool(added) and self._with(added) is None
        (clause,) = added
        if len(clause) != 1:
            return self._with(added) is None
        (guard,) = clause  # one test more, which is what is asked most often
        test = guard.test
        if test in self.units:
            return True
        if _two_constants(self.units, {test: guard}):
            return True
        return test in self.open and _no_way_out(self.longer, {**self.units, test: guard})

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
        asked = {guard.test for clause in self.clauses for guard in clause}
        said = [
            " or ".join(sorted(g.words() for g in clause))
            if len(clause) == 1
            else "(" + " or ".join(sorted(g.words() for g in clause)) + ")"
            for clause in self.clauses
            if not any(
                is_choice(g.test) or (is_whole(g.test) and asked.issuperset(tests_in(g.test)))
                for g in clause
            )
        ]
        return "when " + " and ".join(sorted(said)) if said else ""

    def __repr__(self) -> str:
        return f"Guards({self.words() or 'always'})"


def _no_way_out(longer: Iterable[Clause], units: dict[Value, Guard]) -> bool:
    """Whether what holds for certain, and what follows from it, leaves a clause without a guard that may hold."""
    known, learnt = units, True
    while learnt:
        learnt, left = False, []
        for clause in longer:
            open_: Guard | None = None
            several = False
            for guard in clause:
                decided = known.get(guard.test)
                if decided is None:
                    several = open_ is not None
                    open_ = open_ or guard
                elif decided.taken is guard.taken:
                    break
            else:
                if open_ is None:
                    return True
                if several:
                    left.append(clause)
                    continue
                known = {**known, open_.test: open_}
                learnt = True
        longer = left
    return False


def _two_constants(units: dict[Value, Guard], fresh: dict[Value, Guard]) -> bool:
    """Whether what one value equals contradicts another guard about it, one of the two in ``fresh``."""
    if all(guard.equals is None and guard.finds is None for guard in fresh.values()):
        return False
    said: dict[Value, object] = {}
    for guard in (*fresh.values(), *units.values()):
        if guard.equals is not None:
            owner, constant = guard.equals
            if said.setdefault(owner, constant) != constant:
                return True
    return any(
        guard.finds is not None
        and isinstance(known := said.get(guard.finds[0]), str)
        and (guard.finds[1] in known) is not guard.taken
        for guard in (*fresh.values(), *units.values())
    )


def _equality(test: Value) -> tuple[Value, object] | None:
    """The value that a test compares with a constant, and the constant."""
    key = test.key
    if isinstance(key, tuple) and key[0] in ("==", "is") and hasattr(key[1], "value"):
        return None if test.owner is None else (test.owner, key[1].value)
    return None


def _finding(test: Value) -> tuple[Value, str] | None:
    """The value that a test searches for a text (``"fsdp" in cfg.trainer``), and the text."""
    key = test.key
    if isinstance(key, tuple) and key[0] == "in" and isinstance(key[1], Part):
        text = getattr(test.owner, "value", None)
        return (key[1], text) if isinstance(text, str) else None
    return None


_remembering: list[Guards] = []
"""Those that know with what they were joined."""


def forget_joins() -> None:
    """Let go of what guards were joined with: a run asks for it again and again, and nobody after it.

    Most of these conjunctions stand in no event; they are half of what a run leaves in memory.
    """
    for guards in _remembering:
        guards._joined = None
    _remembering.clear()


ALWAYS = Guards()
NEVER = Guards(impossible=True)


def unit(guard: Guard) -> frozenset[Clause]:
    """The clauses that say just ``guard``."""
    return guard.unit


def asked(test: Value, taken: bool, site: Site) -> frozenset[Clause]:
    """The clauses of "``test`` came out as ``taken``", the same object each time that ``site`` asks.

    What is known to be the same does not have to be compared, joined and looked up again.
    """
    about = test.asked or test.about()
    key = (taken, id(site.node))  # the guard keeps its site, and with it the node
    known = about.get(key)
    if known is None:
        known = about[key] = unit(Guard(test, taken, site))
    return known


def either(left: frozenset[Clause], right: frozenset[Clause]) -> frozenset[Clause]:
    """The clauses of "all of ``left`` or all of ``right``"; what grows too long is forgotten."""
    return either_exactly(left, right)[0]


def either_exactly(
    left: frozenset[Clause], right: frozenset[Clause]
) -> tuple[frozenset[Clause], bool]:
    """The same, and whether nothing was forgotten."""
    if len(left) * len(right) > MAX_CLAUSES:
        return left & right, left == right
    joined, exact = [], True
    for one in left:
        for other in right:
            clause = one | other
            tests = {guard.test for guard in clause}
            # fewer tests than guards: both sides of one of them, which says nothing
            if len(tests) == len(clause):
                if len(clause) <= MAX_CLAUSE:
                    joined.append(clause)
                else:
                    exact = False
    return frozenset(joined), exact


def negated(clauses: frozenset[Clause]) -> frozenset[Clause]:
    """The clauses of "not all of these"; nothing when that cannot be said in short."""
    if not clauses:
        return clauses
    product = 1
    for clause in clauses:
        product *= len(clause)
    if product > MAX_CLAUSES:
        return frozenset()
    if product == 1:
        if len(clauses) > MAX_CLAUSE:
            return frozenset()
        every = [~guard for clause in clauses for guard in clause]
        return every[0].unit if len(every) == 1 else frozenset((frozenset(every),))
    result: frozenset[Clause] | None = None
    for clause in clauses:
        sides = frozenset([frozenset((~guard,)) for guard in clause])
        result = sides if result is None else either(result, sides)
    return result or frozenset()
