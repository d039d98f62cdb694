"""Edits of statements: insert, remove, move, wrap, unwrap.

All such edits of one block are resolved together (:mod:`fsdp2lint.edits.blocks`), so that a block from
which everything goes gets its ``pass``, and a line ``a; b`` is taken apart once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Literal

import libcst as cst

from fsdp2lint.edits.changes import Change, Inner
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
        from fsdp2lint.edits.blocks import block_changes

        edits = [edit for edit in together if isinstance(edit, StatementEdit)]
        return block_changes(self.layout, edits)


class Insert(StatementEdit):
    """Statements beside the statement of ``node``."""

    def __init__(self, source: Source, node: cst.CSTNode, text: Text, *, after: bool) -> None:
        super().__init__(source, node)
        self.text = text
        self.after = after


class InsertBefore(Insert):
    """Statements before the one that ``node`` is in, above the comments that stand directly above it."""

    def __init__(self, source: Source, node: cst.CSTNode, text: Text) -> None:
        super().__init__(source, node, text, after=False)


class InsertAfter(Insert):
    """Statements after the one that ``node`` is in."""

    def __init__(self, source: Source, node: cst.CSTNode, text: Text) -> None:
        super().__init__(source, node, text, after=True)


class Remove(StatementEdit):
    """No statement any more where ``node`` is; comment lines above it stay unless ``comments`` is true.

    With ``"lone"`` they go where nothing that is left stands directly below them.
    """

    def __init__(
        self, source: Source, node: cst.CSTNode, *, comments: bool | Literal["lone"] = False
    ) -> None:
        super().__init__(source, node)
        self.comments = comments


class Move(StatementEdit):
    """The statement of ``node``, with the comments directly above it, at another place of its block.

    Raises:
        ValueError: the other statement stands in another block, or is the same.
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
