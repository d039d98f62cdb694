"""A stretch of statements in one block, what happens there, and what each of them reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import Event, Layout, Sharded, Site, Source, Trace, Wrapping, walk

from ..._common.fixes import sites_together, statement_beside
from ..._common.fixes_moving import shared_site
from .exposed import outer_names, reads, writes

_Function = cst.FunctionDef | cst.Lambda


@dataclass(frozen=True, slots=True)
class Region:
    """The statements of one block from the first of some events to a later one, whose statement is the last."""

    source: Source
    statements: list[cst.CSTNode]
    below: list[cst.CSTNode]
    """The rest of the block."""
    whole: bool
    """Whether the block is that of a module or of a function."""
    happened: dict[cst.CSTNode, list[Event]]
    """What happens in each statement, also in the functions that it calls."""

    def entered(self, statement: cst.CSTNode) -> list[_Function]:
        """The functions that run in a statement."""
        around = Layout.of(self.source).function(statement)
        found: dict[_Function, None] = {}
        for event in self.happened[statement]:
            running = [one.node for one in event.moment.inside]
            start = max((i + 1 for i, node in enumerate(running) if node is around), default=0)
            found.update(dict.fromkeys(running[start:]))
        return list(found)

    def reads(self, statement: cst.CSTNode) -> set[str]:
        """What a statement, or a function that runs in it, reads from around it."""
        found = reads(statement)
        for function in self.entered(statement):
            found |= outer_names(function)
            found |= {name for name in reads(function.body) if name.startswith(".")}
        return found

    def writes(self, statement: cst.CSTNode) -> set[str]:
        """What a statement, or a function that runs in it, binds or changes around it.

        What comes in the place of the module that it was made of (``model = fully_shard(model)``) does not count.
        """
        found = self._written(statement)
        for function in self.entered(statement):
            found |= {name for name in self._written(function.body) if name.startswith(".")}
        return found

    def _written(self, statement: cst.CSTNode) -> set[str]:
        found = writes(statement)
        for node in walk(statement, into=False):
            if isinstance(node, cst.Assign) and self._in_place(node):
                found -= set().union(*(writes(target) for target in node.targets))
        return found

    def _in_place(self, assigned: cst.Assign) -> bool:
        """Whether a module, or what a wrapper made of it, comes where the module was."""
        call = assigned.value
        if not isinstance(call, cst.Call) or len(assigned.targets) != 1:
            return False
        target = assigned.targets[0].target
        if self._makes(call) and not isinstance(target, cst.Name):
            return True
        said = _text(target)
        given = [i for i, a in enumerate(call.args) if not a.keyword and _text(a.value) == said]
        if not given:
            return False
        return (given[0] == 0 and self._makes(call)) or self._gives_back(call, given[0])

    def _makes(self, call: cst.CSTNode) -> bool:
        """Whether a call shards or wraps its first argument."""
        events = (event for held in self.happened.values() for event in held)
        return any(e.at.node is call and isinstance(e, Sharded | Wrapping) for e in events)

    def _gives_back(self, call: cst.Call, place: int) -> bool:
        """Whether a call is of a function of the project that returns the argument at a place."""
        called = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
        for function in (f for one in self.statements for f in self.entered(one)):
            if isinstance(function, cst.FunctionDef) and _text(function.name) == _text(called):
                names = [_text(p.name) for p in function.params.params]
                names = names[1:] if names[:1] in (["self"], ["cls"]) else names
                return place < len(names) and self._returns(function, names[place])
        return False

    def _returns(self, function: cst.FunctionDef, name: str) -> bool:
        """Whether all that a function returns is one of its parameters, sharded or wrapped at most."""
        left = [n for n in walk(function.body, into=False) if isinstance(n, cst.Return)]
        for one in left:
            value = one.value
            if isinstance(value, cst.Call) and self._makes(value) and value.args:
                value = value.args[0].value
            if value is None or _text(value) != name:
                return False
        return bool(left) and name not in self._written(function.body)


def region(trace: Trace, moving: Event, above: Sequence[Event]) -> Region | None:
    """The stretch from the first of some events to a later one, when all are in one block."""
    site = shared_site(moving, above)
    if site is None:
        return None
    layout = Layout.of(site.source)
    for around in layout.ancestors(site.node):
        if isinstance(around, cst.FunctionDef | cst.Lambda):
            return None
        if isinstance(around, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            block = layout.block(around)
            theirs = (sites_together(moving, event)[1] for event in above)
            beside = [statement_beside(block, one) for one in theirs]
            body: list[cst.CSTNode] = list(getattr(block, "body", ()))
            if None not in beside and any(one is around for one in body):
                return _between(trace, site, body, around, beside)
    return None


def leaves(statement: cst.CSTNode) -> bool:
    """Whether a statement may leave its block."""
    loop = isinstance(statement, cst.For | cst.While)
    kinds: tuple[type[cst.CSTNode], ...] = (cst.Return, cst.Raise, cst.Yield, cst.Await)
    kinds = kinds if loop else (*kinds, cst.Break, cst.Continue)
    return any(isinstance(node, kinds) for node in walk(statement, into=False))


def _between(
    trace: Trace,
    site: Site,
    body: list[cst.CSTNode],
    moving: cst.CSTNode,
    beside: Sequence[cst.CSTNode | None],
) -> Region | None:
    first = min(i for i, one in enumerate(body) if any(one is b for b in beside))
    last = next(i for i, one in enumerate(body) if one is moving)
    if first >= last:
        return None
    layout = Layout.of(site.source)
    block = layout.block(moving)
    whole = isinstance(block, cst.Module) or isinstance(layout.parents[block], cst.FunctionDef)
    statements = body[first : last + 1]
    happened = _happened(trace, site.source, statements)
    return Region(site.source, statements, body[last + 1 :], whole, happened)


def _happened(
    trace: Trace, source: Source, statements: Sequence[cst.CSTNode]
) -> dict[cst.CSTNode, list[Event]]:
    layout = Layout.of(source)
    found: dict[cst.CSTNode, list[Event]] = {one: [] for one in statements}
    held: dict[cst.CSTNode, cst.CSTNode | None] = {}
    for event in trace:
        for site in _way(event, source):
            if site.node not in held:
                around = (site.node, *layout.ancestors(site.node))
                held[site.node] = next((a for a in around if a in found), None)
            statement = held[site.node]
            if statement is not None:
                found[statement].append(event)
                break
    return found


def _way(event: Event, source: Source) -> Iterator[Site]:
    return (one for one in (*event.moment.calls, event.at) if one.source is source)


def _text(node: cst.CSTNode) -> str:
    return cst.Module(()).code_for_node(node)
