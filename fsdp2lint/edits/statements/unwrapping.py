"""What a ``with`` comes down to that goes from around its statements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.edits.changes import Change, Inner
from fsdp2lint.edits.commas import CommaList
from fsdp2lint.edits.lines import indented, lifted

if TYPE_CHECKING:
    from fsdp2lint.edits.layout import Layout
    from fsdp2lint.edits.statements import Unwrap

_BLANK_LINES = re.compile(r"([ \t\f]*(\r\n|\r|\n))+")


def unwrapped(layout: Layout, edit: Unwrap) -> Iterator[Change]:
    """The changes that an :class:`Unwrap` comes down to."""
    node = edit.node
    if edit.item is not None:
        yield from _without_item(layout, edit)
        return

    def block(inner: Inner) -> str:
        return _header(layout, edit, inner) + _body(layout, node, inner)

    yield Change(layout.top(node), layout.bottom(node), block, 2 * layout.depth(node) - 1)


def _without_item(layout: Layout, edit: Unwrap) -> Iterator[Change]:
    """One item goes, what comes instead of it is above the ``with``."""
    node, top = edit.node, layout.top(edit.node)
    if edit.instead:
        yield Change(top, top, lambda inner: _instead(layout, edit, inner) + layout.newline)
    items = CommaList(layout, node.items, None, 2 * layout.depth(node) + 1)
    if isinstance(node.lpar, cst.LeftParen):
        items.close = layout.text.index(")", items.ends[-1])
    yield from items.remove([next(i for i, one in enumerate(node.items) if one is edit.item)])


def _instead(layout: Layout, edit: Unwrap, inner: Inner) -> str:
    """What comes in place of the header, indented."""
    text = edit.instead if isinstance(edit.instead, str) else edit.instead(inner)
    return indented(text.removesuffix("\n"), layout.indentation(edit.node), layout.newline)


def _header(layout: Layout, edit: Unwrap, inner: Inner) -> str:
    """The lines in place of the header: its one comment stays behind them, others above."""
    node, newline = edit.node, layout.newline
    comments = _comments(layout, node)
    new = _instead(layout, edit, inner) if edit.instead else ""
    if new and len(comments) == 1 and newline not in new:
        return f"{new}  {comments[0]}{newline}"
    above = "".join(f"{layout.indentation(node)}{comment}{newline}" for comment in comments)
    return above + (new + newline if new else "")


def _comments(layout: Layout, node: cst.With) -> list[str]:
    """The comments in the header of a ``with``."""
    first, past = layout.place(layout.top(node)), layout.place(_body_start(layout, node))
    return [c.text for c in layout.source.comments if first <= (c.line, c.column) < past]


def _body(layout: Layout, node: cst.With, inner: Inner) -> str:
    """The statements of a ``with`` at the indentation of the ``with``."""
    start, bottom, indent = _body_start(layout, node), layout.bottom(node), layout.indentation(node)
    if isinstance(node.body, cst.SimpleStatementSuite):
        return indent + inner.between(start, bottom)
    # from the newline above on: what is inserted right at the start stands inside the stretch
    code = inner.between(start - 1, bottom)[1:]
    if blank := _BLANK_LINES.match(code):
        code = code[blank.end() :]
    return lifted(code, indent, layout.indentation(node.body.body[0]))


def _body_start(layout: Layout, node: cst.With) -> int:
    """Where the lines of the body begin; the first statement of one that shares the line of its header."""
    first = node.body.body[0]
    if isinstance(node.body, cst.SimpleStatementSuite):
        return layout.span(first)[0]
    start = layout.top(first)
    for _ in getattr(first, "leading_lines", ()):
        start = layout.line_start(start - 1)
    return start
