"""The fix of `no_sync`: the block around the body goes, a switch before it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Called,
    Edit,
    Event,
    Fix,
    InsertAfter,
    InsertBefore,
    Layout,
    Remove,
    Site,
    SyncPaused,
    SyncSwitched,
    Trace,
    Unimport,
    Unwrap,
    negated,
    options,
    unwrapped,
    walk,
)

from ..._common.fixes import call_of, path_text, receiver_of
from ..._common.shared import sharded, wrapped_before

Flag = Callable[[Callable[[cst.CSTNode], str]], str]
"""Makes the text of a flag; it is given what makes the text of a node of the file."""


@dataclass(frozen=True, slots=True)
class _Block:
    """A ``with`` one of whose items is ``no_sync()``, or a name that holds it under a condition."""

    node: cst.With
    item: cst.WithItem
    flag: Flag | None
    """When gradients are synchronised; None: never inside the block."""
    bound: cst.CSTNode | None = None
    """The statement that gave the context manager its name."""
    test: cst.BaseExpression | None = None


def switched_instead(trace: Trace, paused: SyncPaused) -> Fix | None:
    """``set_requires_gradient_sync`` in place of a ``with model.no_sync():`` around a backward.

    None unless the model has surely been sharded itself, every backward inside and outside of the block is
    in sight, and the script switches nothing itself.
    """
    receiver = receiver_of(paused.at)
    model = path_text(paused.at, receiver)
    call = call_of(paused.at)
    if not model or call is None or call.args or not _always_sharded(trace, paused):
        return None
    if any(trace.concerns(e, unwrapped(paused.module)) for e in trace.of(SyncSwitched)):
        return None
    block = _block(trace, paused, call)
    if block is None or not _can_go(paused.at, block):
        return None
    inside, outside = _backwards(trace, paused.at, block)
    if not inside or (block.flag is None and not outside):
        return None
    again = bool(outside) or not trace.known(paused.module)
    if again and _left_early(block.node):
        return None
    edits = _edits(paused.at, block, model, again)
    if again:
        title = "switch the gradient synchronisation before and after the block"
        return Fix(title, edits, "unsafe", "an exception in the block leaves it switched off")
    title = "switch the gradient synchronisation before the backward"
    if paused.at.source is trace.source:
        return Fix(title, edits, "safe")
    return Fix(title, edits, "unsafe", "other scripts may come here with a model of another kind")


def _edits(site: Site, block: _Block, model: str, again: bool) -> tuple[Edit, ...]:
    source, flag = site.source, block.flag
    comment = "" if block.bound is None else _comment_behind(Layout.of(source), block.bound)

    def switch(text: Callable[[cst.CSTNode], str]) -> str:
        on = "False" if flag is None else flag(text)
        return f"{model}.set_requires_gradient_sync({on}){comment}"

    edits: list[Edit] = []
    if len(block.node.items) > 1:
        edits += (
            InsertBefore(source, block.node, switch),
            Unwrap(source, block.node, item=block.item),
        )
    else:
        edits.append(Unwrap(source, block.node, switch))
    if block.bound is not None:
        edits.append(Remove(source, block.bound))
    if flag is not None:
        unused = ("contextlib.nullcontext", "contextlib")
        edits += (Unimport(source, name) for name in unused)
    if again:
        on = f"{model}.set_requires_gradient_sync(True)"
        edits.append(InsertAfter(source, block.node, on))
    return tuple(edits)


def _comment_behind(layout: Layout, statement: cst.CSTNode) -> str:
    line = layout.line(statement)
    comment = getattr(line, "trailing_whitespace", cst.TrailingWhitespace()).comment
    return "" if comment is None else f"  {comment.value}"


def _always_sharded(trace: Trace, paused: SyncPaused) -> bool:
    """Whether the module is one that ``fully_shard`` itself was applied to, whenever the call is reached."""
    for event in trace.of(SyncPaused):
        if event.at.node is not paused.at.node:
            continue
        found = sharded(trace, event, event.module, itself=True)
        if found is None or len(options(event.module)) != 1:
            return False
        shard, module = found
        if wrapped_before(trace, event, module, "ddp", "fsdp1"):
            return False
        if not event.guards.implies(shard.guards):
            return False
    return True


def _same_otherwise(trace: Trace, paused: SyncPaused, other: cst.BaseExpression) -> bool:
    """Whether the module is surely sharded also where the other side of a choice is taken."""
    found = sharded(trace, paused, paused.module, itself=True)
    taken = [c for c in trace.calls("contextlib.nullcontext") if c.at.node is other]
    return found is not None and all(c.guards.implies(found[0].guards) for c in taken)


def _block(trace: Trace, paused: SyncPaused, call: cst.Call) -> _Block | None:
    """The ``with`` that a ``no_sync()`` call is for."""
    layout = Layout.of(paused.at.source)
    chosen: cst.BaseExpression = call
    flag: Flag | None = None
    test: cst.BaseExpression | None = None
    parent = layout.parents[call]
    if isinstance(parent, cst.IfExp):
        flag = _flag(trace, paused, parent, call)
        if flag is None:
            return None
        chosen, test, parent = parent, parent.test, layout.parents[parent]
    if isinstance(parent, cst.WithItem):
        around = layout.parents[parent]
        assert isinstance(around, cst.With)
        return _Block(around, parent, flag, None, test)
    if isinstance(parent, cst.Assign) and flag is not None and parent.value is chosen:
        return _named(layout, parent, flag, test)
    return None


def _named(
    layout: Layout, bound: cst.Assign, flag: Flag, test: cst.BaseExpression | None
) -> _Block | None:
    """``context = …`` directly above ``with context:``, and used nowhere else."""
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
    around = layout.parents[item]
    if not isinstance(item, cst.WithItem) or not isinstance(around, cst.With):
        return None
    body = list(getattr(layout.block(bound), "body", ()))
    below = body[body.index(line) + 1 :]
    return _Block(around, item, flag, bound, test) if below and below[0] is around else None


def _flag(trace: Trace, paused: SyncPaused, choice: cst.IfExp, call: cst.Call) -> Flag | None:
    """When gradients are synchronised, for a choice between ``no_sync()`` and ``nullcontext()``."""
    other = choice.orelse if choice.body is call else choice.body
    if not _does_nothing(trace, other) or choice.test is call:
        return None
    if not _same_otherwise(trace, paused, other):
        return None
    test = choice.test
    if choice.orelse is call:
        return lambda text: text(test)
    return lambda text: negated(test, text)


def _does_nothing(trace: Trace, node: cst.BaseExpression) -> bool:
    """Whether an expression is ``nullcontext()``."""
    return isinstance(node, cst.Call) and any(
        c.at.node is node for c in trace.calls("contextlib.nullcontext")
    )


def _can_go(site: Site, block: _Block) -> bool:
    """Whether the ``with`` can go, or the item from it."""
    node = block.node
    if node.asynchronous is not None or block.item.asname is not None:
        return False
    before = node.items[: list(node.items).index(block.item)]
    named = {n.value for i in before if i.asname for n in walk(i.asname) if isinstance(n, cst.Name)}
    tested = () if block.test is None else walk(block.test)
    mentioned = {n.value for n in (*tested, *walk(block.item)) if isinstance(n, cst.Name)}
    return not (named & mentioned)


def _backwards(trace: Trace, site: Site, block: _Block) -> tuple[list[Event], list[Event]]:
    """The backwards that happen inside the block, and all others."""
    inside: list[Event] = []
    outside: list[Event] = []
    for backward in (*trace.of(Backward), *_unresolved(trace)):
        held = any(
            path.source is site.source and _holds(site, block.node.body, path)
            for path in (*backward.moment.calls, backward.at)
        )
        (inside if held else outside).append(backward)
    return inside, outside


def _unresolved(trace: Trace) -> Iterator[Event]:
    """Calls named ``backward`` that may be one."""
    seen = {b.at.node for b in trace.of(Backward)}
    return (c for c in trace.of(Called) if c.name.endswith("backward") and c.at.node not in seen)


def _holds(site: Site, node: cst.CSTNode, inner: Site) -> bool:
    return inner.node is node or node in Layout.of(site.source).ancestors(inner.node)


def _left_early(block: cst.With) -> bool:
    """Whether the body may be left before its end in another way than by an exception."""
    return any(
        isinstance(n, cst.Return | cst.Break | cst.Continue | cst.Yield)
        for n in walk(block.body, into=False)
    )
