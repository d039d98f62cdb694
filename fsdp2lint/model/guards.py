"""Under which conditions something happens.

A script asks ``if cfg.fsdp:`` five times and ``if rank == 0:`` ten times. The interpreter walks both
sides of each test and remembers on which side it is. A :class:`Guard` is one such side: *this
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

from fsdp2lint.model.basic_values import (
    OneOf,
    Part,
    forget_guards,
    is_choice,
    is_whole,
    keeps_guards,
    tests_in,
)

if TYPE_CHECKING:
    from fsdp2lint.model.values import Value
    from fsdp2lint.source.source import Site

MAX_CLAUSE = 4
"""Longer disjunctions are forgotten: they exclude next to nothing."""

MAX_CLAUSES = 24
"""So many clauses at most come out of a disjunction of conjunctions; larger ones are forgotten."""


class Guard:
    """One side of one test. Equality is by test and side; where it was asked is kept for the reader."""

    __slots__ = (
        "_hash",
        "_inverse",
        "_unit",
        "among",
        "equals",
        "finds",
        "is_plain",
        "offered",
        "refuses",
        "site",
        "taken",
        "test",
    )

    def __init__(self, test: Value, taken: bool, site: Site | None = None) -> None:
        self.test = test
        self.taken = taken
        self.site = site
        self._hash = hash((id(test), taken))
        self._inverse: Guard | None = None
        self._unit: frozenset[Clause] | None = None
        self.equals = _compared(test) if taken else None
        """The value that the test then equals, and the constant; None when it says no such thing."""
        self.finds = _finding(test)
        """The value that is searched for a text, and the text; None when the test does no such thing."""
        self.among = _membership(test)
        """The value that is looked for among constants, and those; None when the test does no such thing."""
        self.offered = _offered(test)
        """The value that is one of a few constants and is tested for some of them; None where none is."""
        self.refuses = 0 if self.offered is None else self._refused(self.offered)
        """Which of those constants it cannot be then, a bit for each."""
        self.is_plain = (
            self.equals is None
            and self.finds is None
            and self.among is None
            and self.offered is None
        )
        """Whether it says nothing of a constant."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guard) and self.test is other.test and self.taken is other.taken

    def __hash__(self) -> int:
        return self._hash

    def __invert__(self) -> Guard:
        if self._inverse is None:
            self._inverse = Guard(self.test, not self.taken, self.site)
            self._inverse._inverse = self
            keeps_guards(self)
        return self._inverse

    def _refused(self, offered: OneOf) -> int:
        answers = (_answer(self, offered, one) for one in offered.constants)
        return sum(1 << i for i, said in enumerate(answers) if said is not self.taken)

    @property
    def unit(self) -> frozenset[Clause]:
        """The clauses that say just this, the same object each time."""
        if self._unit is None:
            self._unit = frozenset((frozenset((self,)),))
            keeps_guards(self)
        return self._unit

    def forget_guards(self) -> None:
        """Let go of those which know this guard and are known by it."""
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
    """What must hold: a conjunction of clauses. Immutable.

    A clause that another one makes needless is not among them: beside ``a`` there is no ``a or b``.
    """

    __slots__ = (
        "_excluded",
        "_joined",
        "_lasting",
        "_speaking",
        "_units",
        "clauses",
        "fatal",
        "impossible",
        "survived",
    )

    def __init__(
        self,
        clauses: frozenset[Clause] = frozenset(),
        impossible: bool = False,
        survived: frozenset[Clause] = frozenset(),
        fatal: frozenset[Clause] = frozenset(),
    ) -> None:
        self.clauses = clauses
        self.impossible = impossible
        self.survived = survived
        """The clauses without which the program would have failed: an ``assert``, a test before a ``raise``. Nobody
        chose them."""
        self.fatal = fatal
        """Those of them behind which nothing goes on, because nobody catches what is raised."""
        self._lasting: Guards | None = None
        self._units: dict[Value, Guard] | None = None
        self._speaking: dict[Value, list[Clause]] | None = None
        self._excluded: dict[Guards, bool] | None = None
        self._joined: dict[tuple[int, int], tuple[frozenset[Clause], Guards]] | None = None

    @property
    def units(self) -> dict[Value, Guard]:
        """The guards that hold for certain, by their test: clauses of their own, and what follows from the others."""
        if self._units is None:
            self._units = ALWAYS._followed(self.clauses) or {}
            _remembering.append(self)
        return self._units

    @property
    def speaking(self) -> dict[Value, list[Clause]]:
        """The clauses of several guards, by the tests of which they speak."""
        if self._speaking is None:
            self._speaking = _by_tests(clause for clause in self.clauses if len(clause) > 1)
        return self._speaking

    def __iter__(self) -> Iterator[Guard]:
        return iter(self.units.values())

    def __bool__(self) -> bool:
        return self.impossible or bool(self.clauses)

    @property
    def lasting(self) -> Guards:
        """What a value that is bound here depends on: not on what the whole program fails without."""
        if not self.fatal:
            return self
        if self._lasting is None:
            left = self.clauses - self.fatal
            self._lasting = Guards(left, survived=self.survived & left) if left else ALWAYS
        return self._lasting

    def also(
        self, clauses: frozenset[Clause], *, survived: bool = False, fatal: bool = False
    ) -> Guards:
        """These guards and ``clauses`` beside them; impossible when they contradict.

        With ``survived`` what runs ends in failure where one of the clauses does not hold, with ``fatal`` the program.
        """
        if self.impossible or not clauses:
            return self
        if not self.clauses:
            return self._join(clauses, survived, fatal)
        # by identity: equal guards that were asked at different places must stay apart
        if self._joined is None:
            self._joined = {}
            _remembering.append(self)
        key = id(clauses), int(survived) + int(fatal)
        known = self._joined.get(key)
        if known is None:
            known = self._joined[key] = (clauses, self._join(clauses, survived, fatal))
        return known[1]

    def chosen(
        self, test: Value, refused: frozenset[Clause], *, last: bool
    ) -> tuple[Guards, frozenset[Clause]]:
        """These guards where ``test`` chose what they are of, and nothing before it; and what is refused behind it."""
        guard = Guard(test, True)
        return self.also(refused if last else refused | unit(guard)), refused | unit(~guard)

    def _join(self, clauses: frozenset[Clause], survived: bool, fatal: bool) -> Guards:
        added = clauses - self.clauses
        if not added:
            return self
        learnt = self._followed(added)
        if learnt is None:
            return NEVER
        kept, fresh = self._without_needless(added)
        if not fresh:
            return self
        tags = self.survived | fresh if survived else self.survived
        joined = Guards(
            kept | fresh, survived=tags, fatal=self.fatal | fresh if fatal else self.fatal
        )
        joined._units = {**self.units, **learnt}
        _remembering.append(joined)
        return joined

    def _without_needless(
        self, added: frozenset[Clause]
    ) -> tuple[frozenset[Clause], frozenset[Clause]]:
        """The clauses of before and those of ``added`` that no other one among them makes needless."""
        speaking = self.speaking
        certain = [guard for clause in added if len(clause) == 1 for guard in clause]
        gone = {
            clause
            for guard in certain
            for clause in speaking.get(guard.test, ())
            if guard in clause
        }
        longer = [clause for clause in added if len(clause) > 1]
        if not longer:
            return (self.clauses - gone if gone else self.clauses), added
        units, sure = self.units, set(certain)
        needless = set()
        for clause in longer:
            if any(g in sure or (g.test in units and units[g.test] == g) for g in clause):
                needless.add(clause)
                continue
            for guard in clause:
                for other in speaking.get(guard.test, ()):
                    if other <= clause:
                        needless.add(clause)
                    elif clause < other:
                        gone.add(other)
            needless.update(other for other in longer if clause < other)
        return self.clauses - gone, added - needless

    def _followed(self, added: Iterable[Clause]) -> dict[Value, Guard] | None:
        """The guards that become certain with ``added`` beside these; None when there is a contradiction.

        There is none among the clauses of before, and what follows from them is known, so only what is new has to
        be followed.
        """
        units = self.units if self.clauses else {}
        fresh, longer = [], []
        for clause in added:
            if len(clause) > 1:
                longer.append(clause)
                continue
            (guard,) = clause
            known = units.get(guard.test)
            if known is None:
                fresh.append(guard)
            elif known.taken is not guard.taken:
                return None
        return _propagated(units, self.speaking, fresh, longer)

    def and_(self, other: Guards) -> Guards:
        """Both hold."""
        if self.impossible or other.impossible:
            return NEVER
        if not other.clauses:
            return self
        both = self.also(other.clauses)
        if other.survived and not both.impossible and not other.survived <= both.survived:
            tags = both.survived | (other.survived & both.clauses)
            deadly = both.fatal | (other.fatal & both.clauses)
            tagged = Guards(both.clauses, survived=tags, fatal=deadly)
            tagged._units = both._units
            _remembering.append(tagged)
            return tagged
        return both

    def since(self, earlier: Guards) -> frozenset[Clause]:
        """The clauses that were added to ``earlier``."""
        return self.clauses - earlier.clauses

    def excludes(self, other: Guards) -> bool:
        """Whether both can never hold in one run."""
        if self.impossible or other.impossible:
            return True
        if not self.clauses or not other.clauses or self is other:
            return False
        if self._excluded is None:
            self._excluded = {}
            _remembering.append(self)
        known = self._excluded.get(other)
        if known is None:
            known = self._excluded[other] = _contradict(self, other)
        return known

    def possible(self) -> bool:
        """Whether all clauses can hold in one run.

        ``impossible`` says what follows from them one after the other; here each side of what they leave open is
        tried, which takes too long while a program is walked. True where there is too much to try.
        """
        return _has_way(self, [_MOST_TRIED])

    def implies(self, other: Guards) -> bool:
        """Whether wherever these hold, ``other`` holds too."""
        if self.impossible or other.clauses <= self.clauses:
            return True
        if other.impossible:
            return False
        return all(clause in self.clauses or self._says(clause) for clause in other.clauses)

    def _says(self, clause: Clause) -> bool:
        """Whether a clause follows from a certain guard or from a shorter clause."""
        units, speaking = self.units, self.speaking
        for guard in clause:
            known = units.get(guard.test)
            if known is not None and known.taken is guard.taken:
                return True
        return any(other <= clause for guard in clause for other in speaking.get(guard.test, ()))

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


def contradict(one: frozenset[Clause], other: frozenset[Clause]) -> bool:
    """Whether what follows from clauses and others has a contradiction in it."""
    return ALWAYS._followed(one | other) is None


def _contradict(one: Guards, other: Guards) -> bool:
    """Whether what follows from both has a contradiction in it; the fewer clauses are followed beside the more."""
    if len(one.clauses) < len(other.clauses):
        one, other = other, one
    added = other.clauses - one.clauses
    return bool(added) and one._followed(added) is None


_MOST_TRIED = 200
"""So many sides are tried before a path counts as possible."""


def _has_way(guards: Guards, left: list[int]) -> bool:
    """Whether some choice makes all clauses true; ``left`` holds how many may still be tried."""
    if guards.impossible:
        return False
    units = guards.units
    undecided = [
        clause
        for clause in guards.clauses
        if len(clause) > 1 and not any(units.get(one.test) == one for one in clause)
    ]
    if not undecided:
        return True
    for guard in min(undecided, key=len):
        left[0] -= 1
        if left[0] < 0 or _has_way(guards.also(guard.unit), left):
            return True
    return False


def _propagated(
    units: dict[Value, Guard],
    speaking: dict[Value, list[Clause]],
    fresh: list[Guard],
    longer: list[Clause],
) -> dict[Value, Guard] | None:
    """What becomes certain when ``fresh`` and ``longer`` hold too; None when a clause is left without a way out."""
    learnt: dict[Value, Guard] = {}
    todo = fresh
    open_ = []
    for clause in longer:
        left = _left(clause, units, learnt)
        if left is False:
            return None
        if isinstance(left, Guard):
            todo.append(left)
        else:
            open_.append(clause)
    said = _by_tests(open_) if todo and open_ else {}
    while todo:
        guard = todo.pop()
        test = guard.test
        known = units.get(test) or learnt.get(test)
        if known is not None:
            if known.taken is not guard.taken:
                return None
            continue
        if not guard.is_plain and _contradicts(guard, (*units.values(), *learnt.values())):
            return None
        learnt[test] = guard
        for clause in (*speaking.get(test, ()), *said.get(test, ())):
            left = _left(clause, units, learnt)
            if left is False:
                return None
            if isinstance(left, Guard):
                todo.append(left)
    return learnt


def _by_tests(clauses: Iterable[Clause]) -> dict[Value, list[Clause]]:
    """Clauses by the tests of which they speak."""
    found: dict[Value, list[Clause]] = {}
    for clause in clauses:
        for guard in clause:
            found.setdefault(guard.test, []).append(clause)
    return found


def _left(clause: Clause, units: dict[Value, Guard], learnt: dict[Value, Guard]) -> Guard | bool:
    """The only guard of a clause that can still make it true; True when it is, or has several, False without any."""
    open_: Guard | None = None
    for guard in clause:
        decided = units.get(guard.test) or learnt.get(guard.test)
        if decided is None:
            if open_ is not None:
                return True
            open_ = guard
        elif decided.taken is guard.taken:
            return True
    return False if open_ is None else open_


def _contradicts(guard: Guard, others: Iterable[Guard]) -> bool:
    """Whether one of ``others`` says that a value equals another constant, or finds in it what is not there, or all of
    them together refuse each of the constants that it can be.
    """
    if guard.offered is not None and guard.offered.constants:
        others = list(others)
        left = (1 << len(guard.offered.constants)) - 1 & ~guard.refuses
        for other in others:
            if other.offered is guard.offered:
                left &= ~other.refuses
        if not left:
            return True
    if guard.equals is not None:
        owner, constant = guard.equals
        return any(
            (g.equals is not None and g.equals[0] is owner and g.equals[1] != constant)
            or _misses(g, owner, constant)
            for g in others
            if not g.is_plain
        )
    return any(g.equals is not None and _misses(guard, *g.equals) for g in others)


def _misses(guard: Guard, owner: Value, constant: object) -> bool:
    """Whether a value that equals a constant is not as a guard found it: with a text in it, or one of several."""
    if guard.among is not None and guard.among[0] is owner:
        return (constant in guard.among[1]) is not guard.taken
    if guard.finds is None or guard.finds[0] is not owner:
        return False
    return isinstance(constant, str) and (guard.finds[1] in constant) is not guard.taken


def _compared(test: Value) -> tuple[Value, object] | None:
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


def _membership(test: Value) -> tuple[Value, tuple[object, ...]] | None:
    """The value that a test looks for among constants (``cfg.mode in ("ddp", "fsdp")``), and the constants."""
    key = test.key
    if isinstance(key, tuple) and key[0] == "in" and test.owner is not None:
        constants = getattr(key[1], "value", None)
        return (test.owner, constants) if isinstance(constants, tuple) else None
    return None


def _offered(test: Value) -> OneOf | None:
    """The value that is one of a few constants and is compared with some, searched for a text, or tested itself."""
    if isinstance(test, OneOf):
        return test
    said = _compared(test) or _membership(test) or _finding(test)
    return said[0] if said is not None and isinstance(said[0], OneOf) else None


def _answer(guard: Guard, offered: OneOf, constant: object) -> bool:
    """How a test comes out for one of the constants."""
    if guard.test is offered:
        return bool(constant)
    if guard.among is not None:
        return constant in guard.among[1]
    if guard.finds is not None:
        return isinstance(constant, str) and guard.finds[1] in constant
    compared = _compared(guard.test)
    return compared is not None and compared[1] == constant


_remembering: list[Guards] = []
"""Those that know with what they were joined or compared, and what they say in parts."""


def forget_joins(most: int = 0) -> None:
    """Let go of all that is kept so that nobody works it out twice, when more than ``most`` guards know something.

    Most of these conjunctions are in no event, and most guards in none of them: they are more than half of what a
    run leaves in memory, and a run soon asks for others.
    """
    if len(_remembering) <= most:
        return
    for guards in _remembering:
        guards._joined = guards._excluded = guards._speaking = guards._units = None
    _remembering.clear()
    forget_guards()


ALWAYS = Guards()
NEVER = Guards(impossible=True)
FAILED = Guards(impossible=True)
"""Behind a ``raise``: no run that comes to its end was there."""


def unit(guard: Guard) -> frozenset[Clause]:
    """The clauses that say just ``guard``."""
    return guard.unit


def asked(test: Value, taken: bool, site: Site) -> frozenset[Clause]:
    """The clauses of "``test`` came out as ``taken``", the same object each time that ``site`` asks.

    What is known to be the same does not have to be compared, joined and looked up again.
    """
    about = test.asked
    if about is None:
        about = test.asked = {}
        keeps_guards(test)
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
