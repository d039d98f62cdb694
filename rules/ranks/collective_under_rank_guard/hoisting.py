"""The fix of a gather under a test of the rank: all ranks make it, above the test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Edit,
    Event,
    Fix,
    Guard,
    InsertBefore,
    Layout,
    Remove,
    Replace,
    Site,
    Trace,
    rank_dependent,
    walk,
)

from ..._common.fixes import call_of, free_name
from ..._common.fixes_moving import bound_names
from ..._common.meetings import Meeting, meetings

_NAMES = {
    "get_model_state_dict": "state",
    "get_optimizer_state_dict": "optimizer_state",
    "get_state_dict": "states",
    "full_tensor": "whole",
}
"""The gathers that give a value, and how the value may be called."""

_EVALUATING = (
    cst.Arg,
    cst.Call,
    cst.Attribute,
    cst.Dict,
    cst.DictElement,
    cst.List,
    cst.Tuple,
    cst.Element,
    cst.Subscript,
)
"""What surely evaluates all that it holds, once."""

_STATEMENTS = (cst.Expr, cst.Assign, cst.AnnAssign, cst.Return)


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A gather in a statement of the body of ``if rank == 0:``."""

    site: Site
    call: cst.Call
    statement: cst.CSTNode
    test: cst.If


def hoisted(trace: Trace, meeting: Meeting, guard: Guard) -> Fix | None:
    """The gather above the test of the rank, what is done with its value still below it.

    None unless the test is of nothing but the rank, and nothing above the gather in the body binds or calls
    what the gather reads.
    """
    found = _guarded(meeting, guard)
    if found is None or not _asks_only(meeting.event, guard):
        return None
    if not _independent(trace, found) or _only_there(trace, found):
        return None
    edits = _whole(found) or _value(trace, found)
    if not edits:
        return None
    return Fix(
        "gather on every rank, above the test of the rank",
        tuple(edits),
        "unsafe",
        "every rank must reach the test, and each holds what it gathers unless it is offloaded",
    )


def _guarded(meeting: Meeting, guard: Guard) -> _Guarded | None:
    site, asked = meeting.event.at, guard.site
    call = call_of(site)
    if meeting.kind not in _NAMES or call is None or asked is None:
        return None
    layout = Layout.of(site.source)
    statement = _statement(layout, call)
    test = asked.statement
    if asked.source is not site.source or not isinstance(test, cst.If) or statement is None:
        return None
    if test.orelse is not None or isinstance(layout.parents[test], cst.If):
        return None
    if isinstance(test.test, cst.BooleanOperation):
        return None
    return _Guarded(site, call, statement, test) if layout.block(statement) is test.body else None


def _statement(layout: Layout, call: cst.Call) -> cst.CSTNode | None:
    """The statement that surely makes a call once when it runs, alone on its line."""
    for around in layout.ancestors(call):
        if isinstance(around, _STATEMENTS):
            line = layout.line(around)
            alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
            return around if alone else None
        if not isinstance(around, _EVALUATING):
            return None
    return None


def _asks_only(event: Event, guard: Guard) -> bool:
    """Whether the statement that asks about the rank asks about nothing else, and no other one about ranks."""
    statement = guard.site.statement if guard.site is not None else None
    asked = 0
    for clause in event.guards.clauses:
        here = any(g.site is not None and g.site.statement is statement for g in clause)
        asked += here
        if not here and any(rank_dependent(g.test) for g in clause):
            return False
    return asked == 1


def _independent(trace: Trace, found: _Guarded) -> bool:
    """Whether the gather would give the same above the test."""
    function = {n.value for n in walk(found.call.func) if isinstance(n, cst.Name)}
    read = _read(found)
    tested = (*walk(found.test.test), *walk(found.call))
    if any(isinstance(n, cst.NamedExpr | cst.Await) for n in tested):
        return False
    gathers = _gathers(trace)
    return not any(
        bound_names(line) & (read | function)
        or any(
            _mentions(n, read) for n in walk(line) if isinstance(n, cst.Call) and n not in gathers
        )
        for line in _lines_above(found)
    )


def _only_there(trace: Trace, found: _Guarded) -> bool:
    """Whether what the gather reads is bound under a test of the rank: other ranks have no such name."""
    asked = {
        g.site.statement
        for event in trace
        for g in event.guards
        if g.site is not None and rank_dependent(g.test)
    }
    said = found.site.source.code(found.test.test)
    return any(
        isinstance(n, cst.If)
        and (n in asked or found.site.source.code(n.test) == said)
        and bound_names(n) & _read(found)
        for n in walk(found.site.source.tree)
        if n is not found.test
    )


def _read(found: _Guarded) -> set[str]:
    """The names that a gather reads, apart from its function."""
    call = found.call
    read = call.args or (call.func,)
    return {n.value for one in read for n in walk(one) if isinstance(n, cst.Name)}


def _gathers(trace: Trace) -> set[cst.CSTNode]:
    """All gathers that give a value."""
    return {m.event.at.node for m in meetings(trace) if m.kind in _NAMES}


def _lines_above(found: _Guarded) -> Iterator[cst.CSTNode]:
    layout = Layout.of(found.site.source)
    line = layout.line(found.statement)
    for one in found.test.body.body:
        if one is line:
            return
        yield one


def _mentions(node: cst.CSTNode, names: set[str]) -> bool:
    return any(isinstance(n, cst.Name) and n.value in names for n in walk(node))


def _whole(found: _Guarded) -> list[Edit]:
    """The statement itself above the test, when it gives a name to the value that only the body uses."""
    statement, source = found.statement, found.site.source
    layout = Layout.of(source)
    if not isinstance(statement, cst.Assign) or statement.value is not found.call:
        return []
    target = statement.targets[0].target
    if len(statement.targets) != 1 or not isinstance(target, cst.Name):
        return []
    within = set(walk(found.test.body))
    named = [n for n in walk(source.tree) if _is_name(layout, n, target.value)]
    if len(found.test.body.body) < 2 or not all(n in within for n in named):
        return []
    line, indent = layout.line(statement), layout.indentation(statement)
    text = layout.text[layout.comments_above(line) : layout.bottom(line)]
    moved = _outdented(text.rstrip("\r\n").removeprefix(indent), indent)
    if not moved:
        return []
    return [Remove(source, statement, comments=True), InsertBefore(source, found.test, moved)]


def _is_name(layout: Layout, node: cst.CSTNode, name: str) -> bool:
    """Whether a node is a variable of that name: no attribute, no keyword."""
    if not isinstance(node, cst.Name) or node.value != name:
        return False
    around = layout.parents.get(node)
    attribute = isinstance(around, cst.Attribute) and around.attr is node
    return not attribute and not (isinstance(around, cst.Arg) and around.keyword is node)


def _value(trace: Trace, found: _Guarded) -> list[Edit]:
    """The call above the test under a new name, the name in its place."""
    source = found.site.source
    layout = Layout.of(source)
    start, end = layout.span(found.call)
    text = _outdented(layout.text[start:end], _indentation(layout, start))
    if not text:
        return []
    name = _name(trace, found)
    new = InsertBefore(source, found.test, f"{name} = {text}")
    return [new, Replace(source, found.call, name)]


def _name(trace: Trace, found: _Guarded) -> str:
    """A name that nothing in the file has, and no other gather under the same test gets."""
    gathers = _gathers(trace)
    base = _base(found.call)
    alike = [n for n in walk(found.test.body) if n in gathers and _base(n) == base]
    place = alike.index(found.call)
    wanted = base if place == 0 else f"{base}_{place + 1}"
    return free_name(found.site, wanted, f"gathered_{wanted}")


def _base(call: cst.CSTNode) -> str:
    """What the value of a gather may be called."""
    function = call.func if isinstance(call, cst.Call) else call
    called = function.attr if isinstance(function, cst.Attribute) else function
    return _NAMES.get(called.value if isinstance(called, cst.Name) else "", "gathered")


def _indentation(layout: Layout, offset: int) -> str:
    line = layout.text[layout.line_start(offset) : offset]
    return line[: len(line) - len(line.lstrip())]


def _outdented(text: str, indent: str) -> str:
    """Text of a block without the indentation of its lines; nothing when a string may cross lines."""
    if '"""' in text or "'''" in text:
        return ""
    return re.sub(rf"(\r\n|\r|\n){re.escape(indent)}", r"\n", text)
