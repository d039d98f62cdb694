"""Edits of statements: insert, remove, move, wrap, unwrap.

All such edits of one block are resolved together (:mod:`fsdp2lint.edits.statements`), so that a block from
which everything goes gets its ``pass``, and a line ``a; b`` is taken apart once.

What the edits of one block come down to.

A block is a list of lines; a line holds one compound statement, or small ones joined by semicolons, or it
is the suite of ``if x: a; b``. Between its statements and at both ends are slots into which statements
come. Only slots and statements that go are changed, so edits inside statements that stay remain possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

import libcst as cst

from fsdp2lint.edits.changes import Change, Conflict, Inner
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.lines import indented, shifted
from fsdp2lint.edits.statements.block_lines import Line, Piece
from fsdp2lint.edits.statements.unwrapping import unwrapped
from fsdp2lint.edits.text import Edit
from fsdp2lint.source.source import Source

Text = str | Callable[[Inner], str]
"""Statements to insert: without indentation, ``\\n`` between lines."""


class StatementEdit(Edit):
    """An edit of the statement that ``node`` is in."""

    def __init__(self, source: Source, node: cst.CSTNode) -> None:
        self.source = source
        self.statement = self.layout.statement(node)

    @property
    def group(self) -> Hashable:
        return "block", self.source, self.layout.block(self.statement)

    def changes(self, together: Sequence[Edit]) -> list[Change]:

        edits = [edit for edit in together if isinstance(edit, StatementEdit)]
        return block_changes(self.layout, edits)


class Insert(StatementEdit):
    """Statements beside the statement of ``node``."""

    def __init__(self, source: Source, node: cst.CSTNode, text: Text, *, after: bool) -> None:
        super().__init__(source, node)
        self.text = text
        self.after = after


class InsertBefore(Insert):
    """Statements before the one that ``node`` is in, above the comments that are directly above it."""

    def __init__(self, source: Source, node: cst.CSTNode, text: Text) -> None:
        super().__init__(source, node, text, after=False)


class InsertAfter(Insert):
    """Statements after the one that ``node`` is in."""

    def __init__(self, source: Source, node: cst.CSTNode, text: Text) -> None:
        super().__init__(source, node, text, after=True)


class Remove(StatementEdit):
    """No statement any more where ``node`` is; comment lines above it stay unless ``comments`` is true.

    With ``"lone"`` they go where nothing that is left is directly below them.
    """

    def __init__(
        self, source: Source, node: cst.CSTNode, *, comments: bool | Literal["lone"] = False
    ) -> None:
        super().__init__(source, node)
        self.comments = comments


class Move(StatementEdit):
    """The statement of ``node``, with the comments directly above it, at another place of its block.

    Raises:
        ValueError: the other statement is in another block, or is the same.
    """

    def __init__(
        self,
        source: Source,
        node: cst.CSTNode,
        *,
        after: cst.CSTNode | None = None,
        before: cst.CSTNode | None = None,
    ) -> None:
        super().__init__(source, node)
        target = after if after is not None else before
        if target is None or (after is not None and before is not None):
            raise ValueError("a statement moves either after or before another")
        self.target = self.layout.statement(target)
        self.after = after is not None
        if self.layout.block(self.target) is not self.layout.block(self.statement):
            raise ValueError("a statement moves only within its block")
        if self.target is self.statement:
            raise ValueError("a statement cannot move beside itself")


class Wrap(StatementEdit):
    """``header`` (``if rank == 0:``) above the statements from ``node``'s to ``last``'s, those one step deeper.

    Raises:
        ValueError: the two are not in one block and in order, or several share a line.
    """

    def __init__(
        self, source: Source, node: cst.CSTNode, header: str, *, last: cst.CSTNode | None = None
    ) -> None:
        super().__init__(source, node)
        self.header = header
        self.last = self.layout.statement(last) if last is not None else self.statement
        if self.layout.block(self.last) is not self.layout.block(self.statement):
            raise ValueError("the statements to wrap are in different blocks")
        if self.layout.span(self.last)[0] < self.layout.span(self.statement)[0]:
            raise ValueError("the statements to wrap are in the wrong order")


class Unwrap(StatementEdit):
    """No ``with`` any more around the statements that ``node``, a ``with``, holds; they move one step out.

    ``instead`` are statements that come in place of the header, whose comment stays. With ``item``, one of
    several items, only that one goes and ``instead`` comes above the ``with``.

    Raises:
        ValueError: the node is no ``with`` that can go: it is another statement, or asynchronous.
    """

    def __init__(
        self,
        source: Source,
        node: cst.With,
        instead: Text = "",
        *,
        item: cst.WithItem | None = None,
    ) -> None:
        super().__init__(source, node)
        if self.statement is not node or node.asynchronous is not None:
            raise ValueError("only a plain `with` can go from around its statements")
        if item is not None and not any(one is item for one in node.items):
            raise ValueError("the item is not one of the `with`")
        self.node = node
        self.instead = instead
        self.item = item if len(node.items) > 1 else None


def block_changes(layout: Layout, edits: Sequence[StatementEdit]) -> list[Change]:
    """The changes that the statement edits of one block come down to.

    Raises:
        Conflict: a statement is to go in two ways.
        ValueError: statements to wrap share a line with others.
    """
    block = layout.block(edits[0].statement)
    lines = _lines(layout, block)
    found: list[Change] = []
    for edit in _distinct(edits):
        if isinstance(edit, Insert):
            _insert(lines, edit)
        elif isinstance(edit, Remove):
            line, _, _ = _take(lines, edit.statement, edit.comments is True)
            line.lone_comments_go |= edit.comments == "lone"
        elif isinstance(edit, Move):
            _move(lines, edit)
        elif isinstance(edit, Wrap):
            found += _wrap(lines, edit)
        elif isinstance(edit, Unwrap):
            _check_stays(lines, edit)
            found += unwrapped(layout, edit)
    for index, line in enumerate(lines):
        if line.lone_comments_go and line.goes:
            line.comments_go |= _leaves_comments_alone(lines[index:])
    bare = not found and all(line.empty for line in lines) and block is not layout.source.tree
    placeholder = lines[0] if bare else None
    for index, line in enumerate(lines):
        above = lines[index - 1] if index else None
        line.leads = above is None or (above.leads and above.vanishes and above is not placeholder)
        if not line.goes or line is placeholder:
            found += _line_changes(line, line is placeholder)
    for run in _runs(lines):
        if placeholder not in run:
            found.append(_without(run[0], run[-1]))
        elif run[1:]:
            found.append(_without(run[1], run[-1]))
    return found


_KEPT = re.compile(
    r"#\s*(%%|fmt:|isort:|mypy:|noqa|pylint:|pragma|region|ruff:|type:)|([^\w\s])\2\2", re.I
)
"""Comments that tools read, and headings, which have rules: they are about more than one statement."""


def _leaves_comments_alone(lines: Sequence[Line]) -> bool:
    """Whether the comments above the first of the lines, which goes, would be about nothing any more."""
    layout, first = lines[0].layout, lines[0].node
    comments = layout.text[layout.comments_above(first) : layout.top(first)]
    if _KEPT.search(comments) or (lines[0].first and isinstance(layout.parents[first], cst.Module)):
        return False
    for line, below in pairwise(lines):
        begins = layout.comments_above(below.node)
        if begins > layout.bottom(line.node) or begins < layout.top(below.node):
            return True
        if not below.goes:
            return False
    return True


def _runs(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """The lines that go without a trace, together where nothing stays between them."""
    run: list[Line] = []
    for line in lines:
        if run and not line.vanishes:
            yield run
            run = []
        if line.goes:
            run.append(line)
    if run:
        yield run


def _lines(layout: Layout, block: cst.CSTNode) -> list[Line]:
    if isinstance(block, cst.SimpleStatementSuite):
        return [Line(layout, block, block.body)]
    body = getattr(block, "body", ())
    lines = [
        Line(layout, one, one.body if isinstance(one, cst.SimpleStatementLine) else [one])
        for one in body
    ]
    lines[0].first = lines[-1].last = True
    return lines


def _distinct(edits: Iterable[StatementEdit]) -> Iterator[StatementEdit]:
    """The edits, what several fixes ask for only once."""
    seen: set[tuple[object, ...]] = set()
    for edit in edits:
        key: tuple[object, ...] = (type(edit), edit.statement)
        if isinstance(edit, Insert):
            key = (Insert, edit.statement, edit.text, edit.after)
        elif isinstance(edit, Move):
            key = (Move, edit.statement, edit.target, edit.after)
        elif isinstance(edit, Wrap):
            key = (Wrap, edit.statement, edit.last, edit.header)
        elif isinstance(edit, Unwrap):
            key = (Unwrap, edit.statement, edit.item, edit.instead)
        if key not in seen:
            seen.add(key)
            yield edit


def _find(lines: Sequence[Line], statement: cst.CSTNode) -> tuple[Line, int, int]:
    """The line of a statement and the range of its parts that the statement is."""
    for line in lines:
        if line.node is statement:
            return line, 0, len(line.parts)
        for index, part in enumerate(line.parts):
            if part is statement:
                return line, index, index + 1
    raise ValueError(f"{type(statement).__name__} is not a statement of the block")


def _insert(lines: Sequence[Line], edit: Insert) -> None:
    line, start, end = _find(lines, edit.statement)
    layout, text = line.layout, edit.text

    def piece(inner: Inner) -> str:
        code = text if isinstance(text, str) else text(inner)
        return indented(code.removesuffix("\n"), line.indent, layout.newline)

    line.put(end if edit.after else start, piece)


def _take(lines: Sequence[Line], statement: cst.CSTNode, comments: bool) -> tuple[Line, int, int]:
    line, start, end = _find(lines, statement)
    if line.gone & set(range(start, end)):
        raise Conflict("a statement is removed or moved twice")
    line.gone.update(range(start, end))
    line.comments_go |= comments
    return line, start, end


def _move(lines: Sequence[Line], edit: Move) -> None:
    line, start, end = _take(lines, edit.statement, True)
    layout = line.layout
    whole = not line.suite and end - start == len(line.parts)

    def piece(inner: Inner) -> str:
        if not whole:
            return line.indent + inner.between(line.span(start)[0], line.span(end - 1)[1])
        lines = inner.between(layout.comments_above(line.node), layout.bottom(line.node))
        return lines.rstrip("\r\n")

    target, first, past = _find(lines, edit.target)
    target.put(past if edit.after else first, piece)


def _wrap(lines: Sequence[Line], edit: Wrap) -> list[Change]:
    line, start, _ = _find(lines, edit.statement)
    last, _, end = _find(lines, edit.last)
    layout = line.layout
    unit, newline = layout.unit, layout.newline
    if not line.suite and start == 0 and end == len(last.parts):

        def block(inner: Inner) -> str:
            return line.indent + edit.header + newline + shifted(inner.text, line.indent, unit)

        level = 2 * layout.depth(line.node) - 1
        return [Change(layout.top(line.node), layout.bottom(last.node), block, level)]
    if line is not last:
        raise ValueError("statements to wrap share a line with others")

    def piece(inner: Inner) -> str:
        code = line.indent + inner.between(line.span(start)[0], line.span(end - 1)[1])
        return line.indent + edit.header + newline + shifted(code, line.indent, unit)

    line.gone.update(range(start, end))
    line.put(start, piece)
    return []


def _check_stays(lines: Sequence[Line], edit: Unwrap) -> None:
    line, _, _ = _find(lines, edit.statement)
    if line.gone:
        raise Conflict("a statement is removed or moved, and its `with` goes from around it")


def _line_changes(line: Line, placeholder: bool) -> list[Change]:
    if not line.gone and not line.slots:
        return []
    if len(line.gone) < len(line.parts):
        return [*_front(line), *_gaps(line), *_end(line)]
    first, last = line.span(0)[0], line.span(len(line.parts) - 1)[1]
    if placeholder or (line.suite and line.empty):
        return [_going(line, first, last, "pass")]
    if line.suite:
        opening = line.layout.newline
        return [_going(line, _colon(line), last, _stack(line, _all(line), opening))]
    return [_instead(line)]


def _front(line: Line) -> Iterator[Change]:
    """What changes before the first statement that stays."""
    newline = line.layout.newline
    first = next(i for i in range(len(line.parts)) if i not in line.gone)
    pieces = _all(line, 0, first)
    start, end = line.span(0)[0], line.span(first)[0]
    if line.suite and line.slots:
        opening = newline if pieces else ""
        closing = newline + line.indent
        yield _going(line, _colon(line), end, _stack(line, pieces, opening, closing))
    elif first > 0:
        headless = _stack(line, pieces, closing=newline + line.indent if pieces else "")
        yield _going(line, start, end, lambda inner: headless(inner).removeprefix(line.indent))
    elif pieces:
        above = line.layout.comments_above(line.node)
        yield Change(above, above, _stack(line, pieces, closing=newline))


def _gaps(line: Line) -> Iterator[Change]:
    """What changes between the statements that stay, and which go behind the last of them."""
    text, newline = line.layout.text, line.layout.newline
    kept = [i for i in range(len(line.parts)) if i not in line.gone]
    for before, after in pairwise(kept):
        pieces = _all(line, before + 1, after)
        start, end = line.span(before)[1], line.span(after)[0]
        if pieces:
            yield _going(line, start, end, _stack(line, pieces, newline, newline + line.indent))
        elif after - before > 1:
            yield _going(line, start, end, text[start : line.span(before + 1)[0]])
    if kept[-1] + 1 < len(line.parts):
        yield _going(line, line.span(kept[-1])[1], line.span(len(line.parts) - 1)[1], "")


def _end(line: Line) -> Iterator[Change]:
    """What comes behind the last statement that stays."""
    kept = max(i for i in range(len(line.parts)) if i not in line.gone)
    pieces = _all(line, kept + 1, len(line.parts))
    if pieces:
        newline, at = line.layout.newline, line.layout.bottom(line.node)
        around = ("", newline) if _ends_line(line.layout, at) else (newline, "")
        yield Change(at, at, _stack(line, pieces, *around))


def _instead(line: Line) -> Change:
    """The whole line goes; what comes in is in its place."""
    start, end = _lines_of(line)
    closing = line.layout.newline if _ends_line(line.layout, end) else ""
    return _going(line, start, end, _stack(line, _all(line), closing=closing))


def _without(first: Line, last: Line) -> Change:
    """Lines go, with what was between them; of the blank lines around them the larger number stays."""
    layout = first.layout
    start, end = _lines_of(first)[0], _lines_of(last)[1]
    above, below = layout.blank_above(start), layout.blank_below(end)
    leads = first.leads and first.vanishes
    spaced = above < start and (last.last or below > end)
    number = layout.line_number
    fewer_below = number(below) - number(end) < number(start) - number(above)
    if spaced and fewer_below and not leads and not last.last:
        end = below
    elif spaced:
        start = above
    if leads and not (spaced and first.first):
        end = below
    return _going(first, start, end, "")


def _lines_of(line: Line) -> tuple[int, int]:
    """From where to where a line goes, with the comments above it or without."""
    layout = line.layout
    top = layout.comments_above(line.node) if line.comments_go else layout.top(line.node)
    return top, layout.bottom(line.node)


def _colon(line: Line) -> int:
    """Where ``if x:`` ends."""
    return len(line.layout.text[: line.span(0)[0]].rstrip(" \t\f\\\r\n"))


def _ends_line(layout: Layout, offset: int) -> bool:
    return layout.text[:offset].endswith(("\n", "\r"))


def _all(line: Line, first: int = 0, last: int | None = None) -> list[Piece]:
    """What comes into the slots from ``first`` to ``last``."""
    end = len(line.parts) if last is None else last
    return [piece for slot in range(first, end + 1) for piece in line.slots.get(slot, ())]


def _stack(line: Line, pieces: Sequence[Piece], opening: str = "", closing: str = "") -> Piece:
    """The pieces below each other."""
    newline = line.layout.newline
    return lambda inner: opening + newline.join(piece(inner) for piece in pieces) + closing


def _going(line: Line, start: int, end: int, text: str | Piece) -> Change:
    """A change of a stretch in which statements go, with all that is changed inside them."""
    return Change(start, end, text, level=2 * line.layout.depth(line.node) - 2, absorbs=True)
