"""Where the nodes of a source are in its text, as offsets, and which node holds which."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache, cached_property
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.source.walk import is_node

if TYPE_CHECKING:
    from fsdp2lint.source.source import Source

NEWLINE = re.compile(r"\r\n|\r|\n")
"""What ends a line for libcst; ``str.splitlines`` splits at eight more characters."""

_FORMATTING = ("whitespace", "leading_", "lines_after", "header", "footer", "trailing_")
_SUITES = ("finalbody", "orelse", "handlers", "cases", "body")


_WIDTHS = (79, 88, 100)
"""The limits of PEP 8, of black and ruff, and of many projects."""
_SHORT = 73


class Layout:
    """The offsets, parents and statements of one source; made once for each source by :meth:`of`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.text = source.text
        self._line_starts = [0, *(m.end() for m in NEWLINE.finditer(self.text))]

    @classmethod
    def of(cls, source: Source) -> Layout:
        """The layout of ``source``."""
        return source.derived(cls)

    @cached_property
    def faithful(self) -> bool:
        """Whether the tree gives back the text: only then do offsets mean anything."""
        return self.source.faithful

    @cached_property
    def newline(self) -> str:
        """The file's newline."""
        return self.source.tree.default_newline

    @cached_property
    def unit(self) -> str:
        """One step of indentation in this file."""
        return self.source.tree.default_indent

    @cached_property
    def width(self) -> int:
        """How long a line may get in this file: the common limit that its own lines keep to.

        A formatter leaves texts and comments as long as they are: one long line in ten says nothing.
        """
        long = [length for length in map(len, self.text.splitlines()) if length >= _SHORT]
        if not long:
            return _WIDTHS[1]  # too few to tell
        fitting = (w for w in _WIDTHS if sum(one > w for one in long) * 10 <= len(long))
        return next(fitting, _WIDTHS[-1])

    @cached_property
    def parents(self) -> dict[cst.CSTNode, cst.CSTNode]:
        """The node that holds each node."""
        found: dict[cst.CSTNode, cst.CSTNode] = {}
        todo: list[cst.CSTNode] = [self.source.tree]
        while todo:
            node = todo.pop()
            for child in children(node):
                found[child] = node
                todo.append(child)
        return found

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around ``node``, innermost first.

        Raises:
            ValueError: the node is not of this source's tree.
        """
        if node is not self.source.tree and node not in self.parents:
            raise ValueError(f"{type(node).__name__} is not a node of {self.source.path}")
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The innermost function around a node."""
        return next((a for a in self.ancestors(node) if isinstance(a, cst.FunctionDef)), None)

    def depth(self, node: cst.CSTNode) -> int:
        """How many nodes are around ``node``."""
        return sum(1 for _ in self.ancestors(node))

    def offset(self, line: int, column: int) -> int:
        """The offset of a 1-based place."""
        return self._line_starts[line - 1] + column - 1

    def place(self, offset: int) -> tuple[int, int]:
        """The 1-based line and column of an offset."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """The offsets of ``node`` without the parentheses around it, decorators included."""
        at = self.source.range(node)
        start = self.offset(at.line, at.column)
        decorators = getattr(node, "decorators", ())
        if decorators:
            first = self.source.range(decorators[0])
            start = self.offset(first.line, first.column)
        return start, self.offset(at.end_line, at.end_column)

    def whole(self, node: cst.CSTNode) -> tuple[int, int]:
        """The offsets of ``node`` with the parentheses that belong to it."""
        left: Sequence[cst.CSTNode] = getattr(node, "lpar", ())
        right: Sequence[cst.CSTNode] = getattr(node, "rpar", ())
        if not left:
            return self.span(node)
        first, last = self.source.range(left[0]), self.source.range(right[-1])
        return (
            self.offset(first.line, first.column),
            self.offset(last.end_line, last.end_column),
        )

    def line_start(self, offset: int) -> int:
        """Where the line of ``offset`` begins."""
        return self._line_starts[bisect_right(self._line_starts, offset) - 1]

    def line_number(self, offset: int) -> int:
        """The number of the line of ``offset``, from 1."""
        return bisect_right(self._line_starts, offset)

    def line_end(self, offset: int) -> int:
        """Where the line of ``offset`` ends, its newline included."""
        index = bisect_right(self._line_starts, offset)
        return self._line_starts[index] if index < len(self._line_starts) else len(self.text)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The statement that ``node`` is in: a small or a compound one, or a line that was asked for.

        Raises:
            ValueError: the node is not part of a statement of this source.
        """
        for one in (node, *self.ancestors(node)):
            if isinstance(one, cst.SimpleStatementLine):
                return one.body[0] if len(one.body) == 1 else one
            if isinstance(one, cst.BaseSmallStatement | cst.BaseCompoundStatement):
                if not isinstance(
                    self.parents.get(one), cst.If
                ):  # an ``elif`` is part of its ``if``
                    return one
        raise ValueError(f"{type(node).__name__} is not part of a statement")

    def line(self, statement: cst.CSTNode) -> cst.CSTNode:
        """What is in the block for a statement: a compound one itself, the line of a small one."""
        if isinstance(statement, cst.BaseSmallStatement):
            return self.parents[statement]
        return statement

    def block(self, statement: cst.CSTNode) -> cst.CSTNode:
        """The module or suite that a statement is in."""
        line = self.line(statement)
        return line if isinstance(line, cst.SimpleStatementSuite) else self.parents[line]

    def ends_block(self, line: cst.CSTNode) -> bool:
        """Whether nothing follows a statement in its block."""
        body: Sequence[cst.CSTNode] = getattr(self.parents[line], "body", ())
        return bool(body) and body[-1] is line

    def top(self, line: cst.CSTNode) -> int:
        """Where the first line of a statement begins, its comments above not included."""
        return self.line_start(self.span(line)[0])

    def comments_above(self, line: cst.CSTNode) -> int:
        """Where the comment lines begin that are directly above a statement; its top if there are none."""
        start = self.top(line)
        for empty in reversed(getattr(line, "leading_lines", ())):
            if empty.comment is None:
                break
            start = self.line_start(self.span(empty)[0])
        return start

    def blank_above(self, offset: int) -> int:
        """Where the blank lines begin that are directly above the line that begins at ``offset``."""
        while offset > 0:
            above = self.line_start(offset - 1)
            if self.text[above:offset].strip():
                break
            offset = above
        return offset

    def blank_below(self, offset: int) -> int:
        """Where the blank lines end that begin at ``offset``."""
        while offset < len(self.text):
            end = self.line_end(offset)
            if self.text[offset:end].strip():
                break
            offset = end
        return offset

    def bottom(self, line: cst.CSTNode) -> int:
        """Where the last line of a statement ends, with its newline and the comments inside its block."""
        return self.line_end(self._last(line))

    def _last(self, node: cst.CSTNode) -> int:
        """The offset of something on the last line of a statement."""
        last, below = self.span(node)[1], 0
        todo: cst.CSTNode | None = node
        while todo is not None:
            last = max(last, self.span(todo)[1])
            for empty in getattr(todo, "footer", ()):
                if empty.comment is not None:
                    below = max(below, self.span(empty.comment)[1])
            todo = _last_suite(todo)
        return max(last, below)

    def indentation(self, line: cst.CSTNode) -> str:
        """The whitespace before a statement that is on a line of its own."""
        start = self.span(line)[0]
        return self.text[self.line_start(start) : start]


def _last_suite(node: cst.CSTNode) -> cst.CSTNode | None:
    for name in _SUITES:
        held = getattr(node, name, None)
        if isinstance(held, cst.CSTNode):
            return held
        if held:
            last = held[-1]
            return last if isinstance(last, cst.CSTNode) else None
    return None


@cache
def _child_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if not f.name.startswith(_FORMATTING))


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The nodes that ``node`` holds, formatting left out, in the order of its fields."""
    for name in _child_fields(type(node)):
        held = getattr(node, name)
        if is_node(type(held)):
            yield held
        elif type(held) is tuple or type(held) is list:
            for one in held:
                if is_node(type(one)):
                    yield one
