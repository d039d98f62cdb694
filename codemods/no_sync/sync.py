"""Where a block without gradient synchronisation begins, ends, and computes backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Called,
    Event,
    Layout,
    Program,
    Site,
    Source,
    SyncPaused,
    Trace,
    Wrapped,
    Wrapping,
    negated,
    options,
    walk,
)

Flag = Callable[[Callable[[cst.CSTNode], str]], str]
"""Makes the text of a flag; it is given what makes the text of a node of the file."""

Paused = tuple[Trace, SyncPaused]


@dataclass(frozen=True, slots=True)
class Block:
    """A ``with`` one of whose items is ``no_sync()``, or a name that holds it."""

    node: cst.With
    item: cst.WithItem
    flag: Flag | None
    """When gradients are synchronised; None: never inside the block."""
    other: cst.BaseExpression | None
    """The ``nullcontext()`` that the script takes instead under a condition."""
    bound: cst.Assign | None
    """The statement that gave the context manager its name."""


def block_of(program: Program, source: Source, call: cst.Call) -> Block | None:
    """The ``with`` that a ``no_sync()`` call is for, where it stands in it or directly above it."""
    layout = Layout.of(source)
    parent: cst.CSTNode | None = layout.parents[call]
    flag: Flag | None = None
    other: cst.BaseExpression | None = None
    chosen: cst.BaseExpression = call
    if isinstance(parent, cst.IfExp):
        if parent.test is call:
            return None
        other = parent.orelse if parent.body is call else parent.body
        if not _does_nothing(program, source, other):
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
    block = Block(node, parent, flag, other, bound)
    return block if _can_go(block, call) else None


def _when(test: cst.BaseExpression, synchronised: bool) -> Flag:
    if synchronised:
        return lambda text: text(test)
    return lambda text: negated(test, text)


def _does_nothing(program: Program, source: Source, node: cst.BaseExpression) -> bool:
    """Whether an expression is ``nullcontext()``."""
    if not isinstance(node, cst.Call) or node.args:
        return False
    named = (r for r in program.named(source) if r.node is node.func)
    return any(r.name == "contextlib.nullcontext" for r in named)


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


def _can_go(block: Block, call: cst.Call) -> bool:
    """Whether the ``with`` can go, or the item from it: nothing before it is named and used by it."""
    node, items = block.node, list(block.node.items)
    if node.asynchronous is not None or block.item.asname is not None or call.args:
        return False
    before = items[: items.index(block.item)]
    named = {n.value for i in before if i.asname for n in walk(i.asname) if isinstance(n, cst.Name)}
    mentioned = {n.value for n in walk(block.item) if isinstance(n, cst.Name)}
    return not named & mentioned


def always_wrapped(program: Program, block: Block, events: Sequence[Paused]) -> bool:
    """Whether the model is FSDP1's also where the script takes ``nullcontext()``, for all that is seen."""
    if block.other is None:
        return True
    for trace, paused in events:
        wrappings = list(_wrappings(program, trace, paused))
        if not wrappings:
            return False
        for called in trace.calls("contextlib.nullcontext"):
            if called.at.node is block.other and not any(
                called.guards.implies(w.guards) for w in wrappings
            ):
                return False
    return True


def _wrappings(program: Program, trace: Trace, paused: SyncPaused) -> Iterator[Wrapping]:
    """Where the model was wrapped; where it comes from unseen code, all that are never left out."""
    found = [w for w in trace.of(Wrapping) if w.by == "fsdp1"]
    mine = [w for w in found if _holds(paused, w)]
    if mine:
        yield from mine
    elif not any(isinstance(one, Wrapped) for one in options(paused.module)):
        everywhere = [w for _, w in program.of(Wrapping) if w.by == "fsdp1"]
        if everywhere and not any(list(w.guards) for w in everywhere):
            yield from everywhere


def _holds(paused: SyncPaused, wrapping: Wrapping) -> bool:
    for one in options(paused.module):
        while isinstance(one, Wrapped):
            if one is wrapping.result:
                return True
            one = one.of
    return False


def backwards_outside(program: Program, source: Source, block: Block) -> bool:
    """Whether a backward runs anywhere but inside the block, or none is seen inside it."""
    inside, outside = False, False
    for trace in program.traces:
        for backward in (*trace.of(Backward), *_unresolved(trace)):
            places = (*backward.moment.calls, backward.at)
            if any(p.source is source and _stands_in(source, block.node.body, p) for p in places):
                inside = True
            else:
                outside = True
    return outside or not inside


def _unresolved(trace: Trace) -> Iterator[Event]:
    """Calls named ``backward`` that may be one."""
    seen = {b.at.node for b in trace.of(Backward)}
    return (c for c in trace.of(Called) if c.name.endswith("backward") and c.at.node not in seen)


def _stands_in(source: Source, node: cst.CSTNode, inner: Site) -> bool:
    return inner.node is node or node in Layout.of(source).ancestors(inner.node)


def may_be_left(source: Source, block: cst.With) -> bool:
    """Whether the body may be left before its end: by a jump, or by an exception that somebody catches."""
    layout = Layout.of(source)
    if any(_jumps_out(layout, block, n) for n in walk(block.body, into=False)):
        return True
    inner: cst.CSTNode = block
    for one in layout.ancestors(block):
        if isinstance(one, cst.FunctionDef):
            return False
        if isinstance(one, cst.Try) and one.body is inner and one.handlers:
            return True
        inner = one
    return False


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
