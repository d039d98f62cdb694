"""Laws of guards: what is joined step by step contradicts exactly where it does when looked at as a whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fsdp2lint.model.guards import ALWAYS, Clause, Guard, Guards
from fsdp2lint.model.values import Unknown, Value

TESTS = tuple(Unknown(name) for name in "abcde")

guards = st.builds(Guard, st.sampled_from(TESTS), st.booleans())
clauses = st.frozensets(guards, min_size=1, max_size=3).filter(
    lambda clause: len({g.test for g in clause}) == len(clause)
)
conjunctions = st.frozensets(clauses, max_size=4)


def contradict(clauses: frozenset[Clause]) -> bool:
    """Whether what holds for certain, followed to its end, leaves a clause without a guard."""
    known: dict[Value, bool] = {}
    while True:
        before = dict(known)
        for clause in clauses:
            if any(known.get(g.test) is g.taken for g in clause):
                continue
            open_ = [g for g in clause if g.test not in known]
            if not open_:
                return True
            if len(open_) == 1:
                known[open_[0].test] = open_[0].taken
        if known == before:
            return False


@given(st.lists(conjunctions, max_size=4))
def test_joined_step_by_step(parts: list[frozenset[Clause]]) -> None:
    here = ALWAYS
    for part in parts:
        here = here.also(part)
    every = frozenset(clause for part in parts for clause in part)
    assert here.impossible == contradict(every)


@given(conjunctions, conjunctions)
def test_excluded(one: frozenset[Clause], other: frozenset[Clause]) -> None:
    left, right = ALWAYS.also(one), ALWAYS.also(other)
    expected = contradict(one | other)
    assert left.excludes(right) == right.excludes(left) == expected


def test_nothing_excludes_nothing() -> None:
    assert not ALWAYS.excludes(Guards())
