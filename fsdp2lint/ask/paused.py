"""Blocks without gradient synchronisation, ``with model.no_sync():``, and the switch in place of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.edits.imports import Unimport
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.negation import negated
from fsdp2lint.edits.statements import InsertAfter, InsertBefore, Remove, Unwrap
from fsdp2lint.edits.text import Edit
from fsdp2lint.model.events import Backward, Called, Event
from fsdp2lint.model.trace import Trace
from fsdp2lint.source.source import Site, Source
from fsdp2lint.source.walk import walk

Flag = Callable[[Callable[[cst.CSTNode], str]], str]
"""Makes the text of a flag; it is given what makes the text of a node of the file."""


@dataclass(frozen=True, slots=True)
class PausedBlock:
    """A ``with`` one of whose items is ``no_sync()``, or a name that holds it."""

    source: Source
    node: cst.With
    item: cst.WithItem
    flag: Flag | None
    """When gradients are synchronised; None: never inside the block."""
    other: cst.BaseExpression | None
    """What the script enters instead under a condition."""
    bound: cst.Assign | None
    """The statement that gave the context manager its name."""

    def backwards(self, traces: Iterable[Trace]) -> tuple[bool, bool]:
        """Whether a backward runs inside the block, and whether one runs anywhere else."""
        found = {self._holds(one) for trace in traces for one in _backwards(trace)}
        return True in found, False in found

    def _holds(self, event: Event) -> bool:
        layout, body = Layout.of(self.source), self.node.body

        def is_inside(site: Site) -> bool:
            return site.source is self.source and (
                site.node is body or body in layout.ancestors(site.node)
            )

        return any(map(is_inside, (*event.moment.calls, event.at)))

    def may_be_left(self) -> bool:
        """Whether the body may be left before its end: by a jump, or by an exception that somebody catches."""
        layout = Layout.of(self.source)
        if any(_jumps_out(layout, self.node, n) for n in walk(self.node.body, into=False)):
            return True
        inner: cst.CSTNode = self.node
        for one in layout.ancestors(self.node):
            if isinstance(one, cst.FunctionDef):
                return False
            if isinstance(one, cst.Try) and one.body is inner and one.handlers:
                return True
            inner = one
        return False

    def switch(self, model: str, text: Callable[[cst.CSTNode], str]) -> str:
        """The call that switches the synchronisation, with the comment of the statement that goes."""
        on = "False" if self.flag is None else self.flag(text)
        line = None if self.bound is None else Layout.of(self.source).line(self.bound)
        comment = getattr(line, "trailing_whitespace", cst.TrailingWhitespace()).comment
        behind = "" if comment is None else f"  {comment.value}"
        return f"{model}.set_requires_gradient_sync({on}){behind}"

    def switched(self, model: str, *, again: bool) -> tuple[Edit, ...]:
        """The switch before the statements of the block, and ``again`` behind them."""
        source, node = self.source, self.node

        def switch(text: Callable[[cst.CSTNode], str]) -> str:
            return self.switch(model, text)

        edits: list[Edit] = []
        if len(node.items) > 1:
            edits += (InsertBefore(source, node, switch), Unwrap(source, node, item=self.item))
        else:
            edits.append(Unwrap(source, node, switch))
        if again:
            edits.append(InsertAfter(source, node, f"{model}.set_requires_gradient_sync(True)"))
        return (*edits, *self.tidied())

    def tidied(self) -> Iterator[Edit]:
        """What nothing needs any more."""
        if self.bound is not None:
            yield Remove(self.source, self.bound)
        if self.flag is not None:
            for name in ("contextlib.nullcontext", "contextlib"):
                yield Unimport(self.source, name)


def paused_block(
    source: Source, call: cst.Call, does_nothing: Callable[[cst.BaseExpression], bool]
) -> PausedBlock | None:
    """The ``with`` that a ``no_sync()`` call is for, where it is in it or directly above it.

    What is entered instead of it under a condition must be one that ``does_nothing``.
    """
    layout = Layout.of(source)
    parent: cst.CSTNode | None = layout.parents[call]
    flag: Flag | None = None
    other: cst.BaseExpression | None = None
    chosen: cst.BaseExpression = call
    if isinstance(parent, cst.IfExp):
        if parent.test is call:
            return None
        other = parent.orelse if parent.body is call else parent.body
        if not does_nothing(other):
            return None
        flag = _when(parent.test, parent.orelse is call)
        chosen, parent = parent, layout.parents[parent]
    bound: cst.Assign | None = None
    if isinstance(parent, cst.Assign) and parent.value is chosen:
        bound = parent
        parent = _only_use_below(layout, parent)
    if not isinstance(parent, cst.WithItem):
        return None
    node = layout.parents[parent]
    assert isinstance(node, cst.With)
    block = PausedBlock(source, node, parent, flag, other, bound)
    return block if _can_go(block, call) else None


def _when(test: cst.BaseExpression, synchronised: bool) -> Flag:
    if synchronised:
        return lambda text: text(test)
    return lambda text: negated(test, text)


def _only_use_below(layout: Layout, bound: cst.Assign) -> cst.CSTNode | None:
    """The item of the ``with`` on the line below that uses the name, if nothing else in the file does."""
    target = bound.targets[0].target
    line = layout.line(bound)
    if len(bound.targets) != 1 or not isinstance(target, cst.Name):
        return None
    used = [
        n
        for n in walk(layout.source.tree)
        if isinstance(n, cst.Name) and n.value == target.value and n is not target
    ]
    if len(used) != 1 or not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    item = layout.parents[used[0]]
    body = list(getattr(layout.block(bound), "body", ()))
    below = body[body.index(line) + 1 :]
    return item if below and below[0] is layout.parents[item] else None


def _can_go(block: PausedBlock, call: cst.Call) -> bool:
    """Whether the ``with`` can go, or the item from it: nothing before it is named and used by it."""
    node, items = block.node, list(block.node.items)
    if node.asynchronous is not None or block.item.asname is not None or call.args:
        return False
    before = items[: items.index(block.item)]
    named = {n.value for i in before if i.asname for n in walk(i.asname) if isinstance(n, cst.Name)}
    mentioned = {n.value for n in walk(block.item) if isinstance(n, cst.Name)}
    return not named & mentioned


def _backwards(trace: Trace) -> Iterator[Event]:
    """The backwards of a trace, and the calls named ``backward`` that may be one."""
    found = trace.of(Backward)
    yield from found
    seen = {b.at.node for b in found}
    for called in trace.of(Called):
        if called.name.endswith("backward") and called.at.node not in seen:
            yield called


def _jumps_out(layout: Layout, block: cst.With, node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Return | cst.Yield):
        return True
    if not isinstance(node, cst.Break | cst.Continue):
        return False
    for one in layout.ancestors(node):
        if one is block:
            return True
        if isinstance(one, cst.For | cst.While):
            return False
    return False
