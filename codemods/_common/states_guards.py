"""Collectives that are below a test of the rank, and where all ranks come by before it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Event, Layout, Source, dotted, rank_dependent, walk

from .loop_text import text_of
from .states_text import can_be_said, function_of, names_in


def test_above(events: list[Event], call: cst.CSTNode, read: cst.CSTNode) -> cst.CSTNode | None:
    """The statement that keeps ranks away from ``call`` in all the events, when all ranks come to it.

    None when the ranks are not kept away in the function of the call, or something on the way binds a name
    that ``read`` needs.
    """
    found = {_test(event, call) for event in events}
    test = found.pop() if len(found) == 1 else None
    if test is None:
        return None
    source = events[0].at.source
    if len(_operands(test)) > 1 and not besides_rank(events[0], test):
        return None  # all ranks would take the state each time that they come by
    return None if bound_between(source, test, call) & names_in(read) else test


def besides_rank(event: Event, test: cst.CSTNode) -> str:
    """What a test asks besides the rank: the other operands of its ``and``; empty if that is not clear."""
    operands = _operands(test)
    if len(operands) < 2:
        return ""
    source = event.at.source
    # what the caller calls by another name has the same last attribute
    of_rank = {_last(g.words()) for g in event.guards if rank_dependent(g.test)}
    plain = {_last(g.words()) for g in event.guards if not rank_dependent(g.test)}
    others = [one for one in operands if _last(source.code(one)) in plain]
    if len(others) != len(operands) - 1:
        others = [one for one in operands if _last(source.code(one)) not in of_rank]
    if len(others) != len(operands) - 1 or not all(can_be_said(source, one) for one in others):
        return ""
    return " and ".join(text_of(source, one) for one in others)


def _operands(test: cst.CSTNode) -> list[cst.BaseExpression]:
    """What the test of an ``if`` joins by ``and``; nothing where it joins by ``or``, or is another statement."""
    operands = [test.test] if isinstance(test, cst.If) else []
    while operands and isinstance(operands[0], cst.BooleanOperation):
        if not isinstance(operands[0].operator, cst.And):
            return []
        operands[:1] = [operands[0].left, operands[0].right]
    return operands


def _last(words: str) -> str:
    return words.rpartition(".")[2]


def _test(event: Event, call: cst.CSTNode) -> cst.CSTNode | None:
    source = event.at.source
    tests = [g.site for g in event.guards if rank_dependent(g.test) and g.site is not None]
    here = [t for t in tests if t.source is source]
    here = [t for t in here if function_of(source, t.statement) is function_of(source, call)]
    if len(here) != 1 or len(tests) != 1 or not isinstance(here[0].statement, cst.If):
        return None
    return _whole_if(source, here[0].statement)


def _whole_if(source: Source, test: cst.If) -> cst.CSTNode:
    """The first ``if`` of a chain of ``elif``."""
    parents = Layout.of(source).parents
    node: cst.CSTNode = test
    while isinstance(parents.get(node), cst.If):
        node = parents[node]
    return node


def bound_between(source: Source, start: cst.CSTNode, end: cst.CSTNode) -> set[str]:
    """The names that are bound from one node to another."""
    layout = Layout.of(source)
    first, last = layout.span(start)[0], layout.span(end)[0]
    found: set[str] = set()
    for node in walk(function_of(source, end)):
        if isinstance(node, cst.Assign | cst.AnnAssign | cst.AugAssign | cst.For | cst.With):
            if first <= layout.span(node)[0] < last and end not in set(walk(node)):
                found |= {name.partition(".")[0] for name in _targets(node)}
    return found


def _targets(node: cst.CSTNode) -> Iterator[str]:
    targets: list[cst.BaseExpression] = []
    if isinstance(node, cst.Assign):
        targets = [t.target for t in node.targets]
    elif isinstance(node, cst.AnnAssign | cst.AugAssign | cst.For):
        targets = [node.target]
    elif isinstance(node, cst.With):
        targets = [i.asname.name for i in node.items if i.asname is not None]
    for target in targets:
        for one in walk(target):
            if isinstance(one, cst.Name | cst.Attribute):
                yield dotted(one)
