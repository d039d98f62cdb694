"""Moving a statement up or down in its block, where nothing between cares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import libcst as cst

from fsdp2lint.api import Event, Fix, Layout, Move, Site, walk

from .fixes import own_statement, sites_together, statement_beside

_BINDING = (
    cst.AssignTarget,
    cst.AnnAssign,
    cst.AugAssign,
    cst.For,
    cst.NamedExpr,
    cst.Del,
)
_LEAVING = (cst.Return, cst.Raise, cst.Break, cst.Continue, cst.Yield)


def moved_above(
    moving: Event, events: Sequence[Event], needed: Sequence[Event], title: str, note: str
) -> Fix | None:
    """Move the statement of an event above the first of others, when they all are in one block.

    ``needed`` are the events that must stay above it. Nothing between may bind a name or an attribute that
    the statement reads, use what it binds, or hand what it reads to a call (the module itself apart).
    """
    site = shared_site(moving, events)
    if site is None:
        return None
    statement, source = own_statement(site), site.source
    line = _alone(Layout.of(source), statement)
    if line is None or not isinstance(statement, cst.Assign | cst.AnnAssign):
        return None
    body = _body(Layout.of(source), statement)
    places = _places(site, body, moving, events)
    if places is None or body.index(line) <= min(places):
        return None
    above = _places(site, body, moving, needed, elsewhere_is_earlier=True)
    if above is None or any(place >= min(places) for place in above):
        return None
    between = body[min(places) : body.index(line)]
    read = _read(statement)
    if any(_disturbs(one, bound_names(statement), read) for one in between):
        return None
    if any(_hands_over(one, _read_plainly(statement)) for one in between):
        return None
    return Fix(title, (Move(source, line, before=body[min(places)]),), "unsafe", note)


def moved_below(moving: Event, events: Sequence[Event], title: str, note: str) -> Fix | None:
    """Move the statement of an event below the last of others, when they all are in one block.

    Nothing between may use the names that it binds, or bind anew the settings that it reads.
    """
    site = shared_site(moving, events)
    statement = None if site is None else own_statement(site)
    if site is None or statement is None:
        return None
    body = _body(Layout.of(site.source), statement)
    places = _places(site, body, moving, events)
    read = _read_plainly(statement)
    return _moved_down(site, statement, places, lambda index: read, title, note)


def moved_beyond(
    moving: Event, statement: cst.Assign, events: Sequence[Event], title: str, note: str
) -> Fix | None:
    """Move a statement, in which an event happens, below the last of others in its block.

    Nothing between may use the names that it binds. What it reads may be bound anew only by the statements
    of those events.
    """
    site = shared_site(moving, events)
    if site is None or site.node is not moving.at.node:
        return None
    places = _places(site, _body(Layout.of(site.source), statement), moving, events)
    read = _read(statement)
    return _moved_down(
        site,
        statement,
        places,
        lambda index: set() if index in (places or ()) else read,
        title,
        note,
    )


def _moved_down(
    site: Site,
    statement: cst.CSTNode,
    places: Sequence[int] | None,
    read: Callable[[int], set[str]],
    title: str,
    note: str,
) -> Fix | None:
    """``read`` gives what the statement at a place of the block must not bind."""
    layout = Layout.of(site.source)
    line, body = _alone(layout, statement), _body(layout, statement)
    if line is None or places is None or max(places) <= body.index(line):
        return None
    start, last = body.index(line), max(places)
    bound = bound_names(statement)
    if any(_disturbs(body[index], bound, read(index)) for index in range(start + 1, last + 1)):
        return None
    return Fix(title, (Move(site.source, line, after=body[last]),), "unsafe", note)


def shared_site(moving: Event, events: Sequence[Event]) -> Site | None:
    """The place of an event in the innermost function where the others happen too, one for all of them."""
    pairs = [sites_together(moving, e) for e in events]
    if not pairs:
        return None
    site = pairs[0][0]
    same = all(m.node is site.node and t.source is site.source for m, t in pairs)
    return site if same else None


def _alone(layout: Layout, statement: cst.CSTNode | None) -> cst.SimpleStatementLine | None:
    """The line of a statement that has it for itself."""
    line = None if statement is None else layout.parents.get(statement)
    if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
        return line
    return None


def _body(layout: Layout, statement: cst.CSTNode) -> list[cst.CSTNode]:
    return list(getattr(layout.block(statement), "body", ()))


def _places(
    site: Site,
    body: Sequence[cst.CSTNode],
    moving: Event,
    events: Sequence[Event],
    *,
    elsewhere_is_earlier: bool = False,
) -> list[int] | None:
    """Where in a block some events happen; None when one does not, unless such ones are known to be earlier."""
    block = Layout.of(site.source).block(body[0])
    found: list[int] = []
    for event in events:
        mine, theirs = sites_together(moving, event)
        beside = None
        if mine.node is site.node and theirs.source is site.source:
            beside = statement_beside(block, theirs)
        index = next((i for i, one in enumerate(body) if one is beside), None)
        if index is not None:
            found.append(index)
        elif not elsewhere_is_earlier:
            return None
    return found


def _targets(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What a node binds: expressions, or nodes with a name."""
    if isinstance(node, _BINDING):
        yield node.target
    elif isinstance(node, cst.AsName | cst.FunctionDef | cst.ClassDef):
        yield node.name
    elif isinstance(node, cst.ImportAlias):
        name: cst.CSTNode = node.name
        while isinstance(name, cst.Attribute):
            name = name.value
        yield name if node.asname is None else node.asname.name


@lru_cache(maxsize=4096)
def bound_names(statement: cst.CSTNode) -> frozenset[str]:
    """The names, and the names of the attributes, that a statement or what is inside it binds."""
    found: set[str] = set()
    todo = [t for node in walk(statement) for t in _targets(node)]
    while todo:
        target = todo.pop()
        if isinstance(target, cst.Name):
            found.add(target.value)
        elif isinstance(target, cst.Attribute):
            found.add(target.attr.value)
        elif isinstance(target, cst.Subscript | cst.StarredElement):
            todo.append(target.value)
        elif isinstance(target, cst.Tuple | cst.List):
            todo += [element.value for element in target.elements]
    return frozenset(found)


def _read(statement: cst.Assign | cst.AnnAssign) -> set[str]:
    """All names and names of attributes in the value of a statement."""
    value = statement.value
    return set() if value is None else {n.value for n in walk(value) if isinstance(n, cst.Name)}


def _read_plainly(statement: cst.CSTNode) -> set[str]:
    """The names that a call reads beside the function and its first argument: settings."""
    call = getattr(statement, "value", None)
    if not isinstance(call, cst.Call):
        return set()
    return {n.value for a in call.args[1:] for n in walk(a.value) if isinstance(n, cst.Name)}


def _disturbs(statement: cst.CSTNode, bound: frozenset[str], read: set[str]) -> bool:
    """Whether a statement uses what another one binds, binds what it reads, or leaves before it."""
    if bound_names(statement) & read:
        return True
    return any(
        (isinstance(n, cst.Name) and n.value in bound) or isinstance(n, _LEAVING)
        for n in walk(statement)
    )


def _hands_over(statement: cst.CSTNode, names: set[str]) -> bool:
    """Whether a statement calls a method of one of these names, or hands it to a call."""
    return any(
        isinstance(n, cst.Name) and n.value in names
        for call in walk(statement)
        if isinstance(call, cst.Call)
        for n in walk(call)
    )
