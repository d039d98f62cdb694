"""Moving a whole statement up, together with what it calls, when all that it does is one kind of thing.

    fully_shard(net)                    with torch.no_grad():
    with torch.no_grad():                   fill(net)
        fill(net)              =>       fully_shard(net)

Here ``fill`` is read too: its body may hold nothing else than the expressions that the caller names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import libcst as cst

from fsdp2lint.api import Edit, Event, Fix, Layout, Move, Names, Site, Source, walk

from .fixes import sites_together, statement_beside
from .fixes_moving import bound_names, shared_site

Nodes = AbstractSet[cst.CSTNode]
"""Expressions: calls, and targets of assignments."""

_LEAVING = (cst.Return, cst.Raise, cst.Break, cst.Continue, cst.Yield, cst.NamedExpr, cst.Await)


class Effect:
    """An event, the statement around it in the block where some other events happen too, and that block."""

    def __init__(self, moving: Event, line: cst.CSTNode, source: Source, first: int) -> None:
        self.moving = moving
        self.line = line
        self.source = source
        self.body: list[cst.CSTNode] = list(getattr(Layout.of(source).block(line), "body", ()))
        self.first = first
        """Where in the block the first of the others is."""

    @classmethod
    def among(cls, moving: Event, others: Sequence[Event]) -> Effect | None:
        """None when they are not all in one block of one function, the others first."""
        site = shared_site(moving, others)
        if site is None:
            return None
        for block in _blocks(site):
            line = statement_beside(block, site)
            theirs = (sites_together(moving, other)[1] for other in others)
            places = [statement_beside(block, one) for one in theirs]
            if line is not None and None not in places:
                body = list(getattr(block, "body", ()))
                found = [index for index, one in enumerate(body) if any(one is p for p in places)]
                below = next(index for index, one in enumerate(body) if one is line)
                return cls(moving, line, site.source, min(found)) if max(found) < below else None
        return None

    @property
    def between(self) -> list[cst.CSTNode]:
        """The statements that it would move over."""
        return self.body[self.first : self.body.index(self.line)]

    def is_only(self, nodes: Nodes) -> bool:
        """Whether the statement does nothing but ``nodes``, also in the functions on the way to the event."""
        return does_only(self.line, self.moving, nodes)

    def read(self) -> set[str]:
        """All names, and names of attributes, in the statement and the functions that lead to the event."""
        nodes = [self.line, *(f.body for f in _functions(self.moving, self.line, self.source))]
        return {n.value for one in nodes for n in walk(one) if isinstance(n, cst.Name)}

    def disturbed(self, apart: Callable[[cst.CSTNode], bool] = lambda one: False) -> bool:
        """Whether a statement between, ``apart`` from some, binds what this one reads, or leaves the block."""
        read = self.read()
        for one in self.between:
            if any(isinstance(n, _LEAVING) for n in walk(one)):
                return True
            if not apart(one) and bound_names(one) & read:
                return True
        return any(isinstance(n, _LEAVING) for n in walk(self.line))

    def hands_over(self, apart: Callable[[cst.CSTNode], bool]) -> bool:
        """Whether a statement between, ``apart`` from some, calls anything with what this one reads.

        Modules and other imported names do not count.
        """
        imported = {one.name for one in Names.of(self.source).imports}
        read = self.read() - imported
        return any(
            isinstance(n, cst.Name) and n.value in read
            for one in self.between
            if not apart(one)
            for call in walk(one)
            if isinstance(call, cst.Call | cst.For | cst.With)
            for n in walk(call)
        )

    def above(self, title: str, note: str) -> Fix:
        """The fix that moves the statement above the first of the others."""
        edit: Edit = Move(self.source, self.line, before=self.body[self.first])
        return Fix(title, (edit,), "unsafe", note)


def holds(statement: cst.CSTNode, event: Event) -> bool:
    """Whether an event happens in a statement, or in what the statement calls."""
    inside = set(walk(statement))
    return any(site.node in inside for site in (*event.calls, event.at))


def does_only(statement: cst.CSTNode, event: Event, nodes: Nodes) -> bool:
    """Whether a statement does nothing but ``nodes``, also in the functions on the way to an event in it.

    What it asks and walks (``if``, ``for``) does not count; a ``with`` needs its contexts among the nodes.
    """
    if isinstance(statement, cst.SimpleStatementLine):
        return all(does_only(small, event, nodes) for small in statement.body)
    if isinstance(statement, cst.BaseSmallStatement):
        return _is_only(statement, event, nodes)
    if isinstance(statement, cst.With):
        if any(item.item not in nodes for item in statement.items):
            return False
    elif not isinstance(statement, cst.If | cst.For) or statement.orelse is not None:
        return False
    return all(does_only(one, event, nodes) for one in statement.body.body)


def _is_only(small: cst.BaseSmallStatement, event: Event, nodes: Nodes) -> bool:
    if isinstance(small, cst.Assign):
        targets = (t.target for t in small.targets)
        return small.value in nodes or any(small in nodes or t in nodes for t in targets)
    if not isinstance(small, cst.Expr):
        return isinstance(small, cst.Pass)
    if small.value in nodes or isinstance(small.value, cst.SimpleString | cst.ConcatenatedString):
        return True
    function = _entered(small.value, event)
    return function is not None and all(
        does_only(one, event, nodes) for one in function[1].body.body
    )


def _entered(call: cst.CSTNode, event: Event) -> tuple[Source, cst.FunctionDef] | None:
    """The function that a call of the path to an event enters."""
    path = [*event.calls, event.at]
    for site, inner in itertools.pairwise(path):
        if site.node is call:
            around = Layout.of(inner.source).ancestors(inner.node)
            found = next((a for a in around if isinstance(a, cst.FunctionDef | cst.Lambda)), None)
            plain = isinstance(found, cst.FunctionDef) and not found.decorators
            return (inner.source, found) if isinstance(found, cst.FunctionDef) and plain else None
    return None


def _functions(event: Event, line: cst.CSTNode, source: Source) -> list[cst.FunctionDef]:
    """The functions on the path from a statement to an event in it."""
    inside = set(walk(line))
    found = []
    for site in event.calls:
        if site.node in inside and site.source is source:
            entered = _entered(site.node, event)
            if entered is not None:
                found.append(entered[1])
                inside |= set(walk(entered[1]))
                source = entered[0]
    return found


def _blocks(site: Site) -> list[cst.CSTNode]:
    """The blocks around a site, the innermost first, up to the function's own."""
    found: list[cst.CSTNode] = []
    for around in Layout.of(site.source).ancestors(site.node):
        if isinstance(around, cst.IndentedBlock | cst.Module):
            found.append(around)
        if isinstance(around, cst.FunctionDef | cst.ClassDef | cst.Lambda):
            break
    return found
