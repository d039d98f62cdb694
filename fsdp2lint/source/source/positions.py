"""Where the nodes of a tree are, as libcst's ``PositionProvider`` says it, in a quarter of the time.

A node is where the text that it gives back is. libcst writes the text of a tree as a list of
tokens and tells its state before and after each node: here the state notes how many tokens there are by
then, and lines and columns are worked out for the few nodes that somebody asks about.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate

import libcst as cst
from libcst._nodes.internal import CodegenState

from fsdp2lint.source.source.places import NEWLINE, Range

_Span = tuple[int, int]
"""How many tokens come before a node, and how many up to its end."""


class Positions:
    """The places of the nodes of one tree."""

    def __init__(self, tree: cst.Module) -> None:
        self._tree = tree  # the nodes are known by their addresses: they must stay
        state = _Noting(default_indent=tree.default_indent, default_newline=tree.default_newline)
        try:
            tree._codegen(state)
        except RecursionError:
            state.spans.clear()
        self._spans = state.spans
        self._offsets = array("I", [0, *accumulate(map(len, state.tokens))])
        """Where each token begins, and where the last one ends."""
        self._text = "".join(state.tokens)

    def range(self, node: cst.CSTNode) -> Range | None:
        """Where a node is, 1-based; None for one that is not in the tree."""
        span = self._spans.get(id(node))
        if span is None:
            return None
        starts = self._line_starts
        start, end = self._offsets[span[0]], self._offsets[span[1]]
        first, last = bisect_right(starts, start), bisect_right(starts, end)
        return Range(first, start - starts[first - 1] + 1, last, end - starts[last - 1] + 1)

    def of(self, text: str) -> bool:
        """Whether the tree gives back this text."""
        if self._tree.has_trailing_newline:
            return self._text == text
        return self._text == text + self._tree.default_newline

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(m.end() for m in NEWLINE.finditer(self._text))]


class _Noting(CodegenState):
    """Notes which tokens belong to which node."""

    def __init__(self, default_indent: str, default_newline: str) -> None:
        super().__init__(default_indent, default_newline)
        self.spans: dict[int, _Span] = {}
        self._open: list[int] = []

    def before_codegen(self, node: cst.CSTNode) -> None:
        self._open.append(len(self.tokens))

    def after_codegen(self, node: cst.CSTNode) -> None:
        start = self._open.pop()
        # what was noted by the node itself counts: it leaves out the whitespace around it
        self.spans.setdefault(id(node), (start, len(self.tokens)))

    def pop_trailing_newline(self) -> None:
        """The last newline stays: nodes end behind it."""

    @contextmanager
    def record_syntactic_position(
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> Iterator[None]:
        start = len(self.tokens)
        yield
        end = len(self.tokens)
        if start_node is not None:
            start = self.spans[id(start_node)][0]
        if end_node is not None:
            end = self.spans[id(end_node)][1]
        self.spans[id(node)] = start, end
