"""Ranks that load one after the other: what talks to all of them has to be done by all at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Called,
    Edit,
    Guard,
    Layout,
    Literal,
    Part,
    Replace,
    Site,
    Source,
    Value,
    rank_dependent,
)

from .._common.states_flattening import Flattening


def alone(found: Flattening) -> bool:
    """Whether ranks come to a load of whole tensors one by one, in a way that cannot be rewritten."""
    return any(not list(_first_turn(site)) for site in _turns([found]))


def all_at_once(every: Sequence[Flattening]) -> Iterator[Edit]:
    """``if turn == rank:`` in ``for turn in range(...)`` lets every rank in at the first turn."""
    for site in _turns(every):
        yield from _first_turn(site)


def _turns(every: Sequence[Flattening]) -> list[Site]:
    """The tests by which each rank waits for its turn to load whole tensors."""
    whole = [one for one in every if "full_state_dict=True" in one.switches]
    called = (called for one in whole for _, called in one.events)
    sites = (guard.site for one in called for guard in _by_turns(one))
    return list({site.statement: site for site in sites if site is not None}.values())


def _by_turns(called: Called) -> Iterator[Guard]:
    """The guards that compare something that all ranks go through with the rank."""
    for guard in called.guards:
        test = guard.test
        if not guard.taken or not isinstance(test, Part) or not isinstance(test.key, tuple):
            continue
        sides = [test.owner, *(one for one in test.key[1:] if isinstance(one, Value))]
        ranked = [rank_dependent(one) for one in sides]
        plain = not any(isinstance(one, Literal) for one in sides)
        if test.key[0] == "==" and len(sides) == 2 and plain and sum(ranked) == 1:
            yield guard


def _first_turn(site: Site) -> Iterator[Edit]:
    """The rank in the test becomes the first turn, which comes for each rank."""
    source, asked = site.source, site.statement
    test = asked.test if isinstance(asked, cst.If) and asked.orelse is None else None
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return
    sides = (test.left, test.comparisons[0].comparator)
    for turn, rank in (sides, reversed(sides)):
        if isinstance(turn, cst.Name) and turn.value in _counted(source, asked):
            yield Replace(source, rank, "0")
            return


def _counted(source: Source, node: cst.CSTNode) -> Iterator[str]:
    """The names that loops around a node count from 0."""
    for around in Layout.of(source).ancestors(node):
        if isinstance(around, cst.For) and isinstance(around.iter, cst.Call):
            if source.code(around.iter.func) == "range" and len(around.iter.args) == 1:
                yield source.code(around.target)
        elif isinstance(around, cst.FunctionDef | cst.Lambda):
            return
