"""One line of a block: the statements on it, those that go, and those that come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import libcst as cst

from fsdp2lint.edits.changes import Inner
from fsdp2lint.edits.layout import Layout

Piece = Callable[[Inner], str]
"""Makes the lines that come into a slot, indented, without the last newline."""


@dataclass(slots=True, eq=False)
class Line:
    """One line of a block and what becomes of it."""

    layout: Layout
    node: cst.CSTNode
    parts: Sequence[cst.CSTNode]
    gone: set[int] = field(default_factory=set)
    slots: dict[int, list[Piece]] = field(default_factory=dict)
    comments_go: bool = False
    lone_comments_go: bool = False
    first: bool = False
    leads: bool = False
    """Whether nothing of the block is left above it."""
    last: bool = False

    @property
    def suite(self) -> bool:
        """Whether it is behind its ``if x:``."""
        return isinstance(self.node, cst.SimpleStatementSuite)

    @property
    def empty(self) -> bool:
        """Whether nothing is left of it."""
        return len(self.gone) == len(self.parts) and not self.slots

    @property
    def goes(self) -> bool:
        """Whether it goes as a whole, and is no suite, which keeps a ``pass``."""
        return self.empty and bool(self.parts) and not self.suite

    @property
    def vanishes(self) -> bool:
        """Whether not even a comment above it is left."""
        top, comments = self.layout.top(self.node), self.layout.comments_above(self.node)
        return self.empty and (self.comments_go or top == comments)

    @property
    def indent(self) -> str:
        """The indentation of the block."""
        if not self.suite:
            return self.layout.indentation(self.parts[0])
        around = next(
            a
            for a in self.layout.ancestors(self.node)
            if isinstance(a, cst.BaseCompoundStatement)
            and not isinstance(self.layout.parents[a], cst.If)
        )
        return self.layout.indentation(around) + self.layout.unit

    def span(self, index: int) -> tuple[int, int]:
        """The offsets of a statement."""
        return self.layout.span(self.parts[index])

    def put(self, slot: int, piece: Piece) -> None:
        """Let statements come into a slot; slot 0 is before the first statement."""
        self.slots.setdefault(slot, []).append(piece)
