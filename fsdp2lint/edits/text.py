r"""How a rule or a codemod says what to change.

An edit names a node of a :class:`~fsdp2lint.source.source.Source` and what becomes of it; the text around it
stays as it is, byte for byte. A fix is a tuple of edits, all made or none:

    Fix("call the module", (Replace(at.source, call.func, "model"),), "safe")

**Expressions** (this module)

    Replace(source, node, "fully_shard")                   other text in place of a node
    Rewrite(source, node, lambda new: f"list({new.text})")  text made of the node's own text

``new`` is an :class:`Inner`: ``new.text`` is the whole text of the node, ``new(child)`` that of a node
inside; edits of those have already been made, so edits nest. Use :class:`Rewrite` and not ``source.code``
whenever text of the file is kept: it keeps comments and line breaks, and other fixes stay possible.
A node does not include the parentheses around it; if the new text binds looser than what is around
the node, it gets parentheses. An edit that changes nothing is no edit.

**Statements** (:mod:`fsdp2lint.edits.statements`); any node inside the statement names it, so pass
``site.node`` (``site.statement`` is the line, which may hold ``a; b``)

    InsertBefore(source, node, "torch.cuda.set_device(local_rank)")
    InsertAfter(source, node, "for layer in model.layers:\n    fully_shard(layer)")
    Remove(source, node)
    Move(source, node, after=other)  or  Move(source, node, before=other)
    Wrap(source, node, "if rank == 0:")
    Unwrap(source, with_node, "model.set_requires_gradient_sync(last)")

Inserted text is written without indentation and with ``\n``; it gets the block's indentation and the
file's newline. It may be a function of an :class:`Inner` too.

**Arguments** (:mod:`fsdp2lint.edits.arguments`)

    Arguments(source, call).add("full_state_dict", "True").rename("path", "checkpoint_id").remove("rank")

**Imports** (:mod:`fsdp2lint.edits.imports`)

    fully_shard = name_for(source, node, "torch.distributed.fsdp.fully_shard")
    Fix(…, (Replace(source, node, f"{fully_shard.text}({…})"), *fully_shard.edits), …)
    Unimport(source, "torch.distributed.fsdp.FullyShardedDataParallel")   when nothing uses it any more

**Text** that is no node (a comment): ``Splice(source, start, end, text)``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence

import libcst as cst

from fsdp2lint.edits.changes import Change, Inner
from fsdp2lint.edits.layout import Layout
from fsdp2lint.source.source import Source

__all__ = ["Edit", "Inner", "Replace", "Rewrite", "Splice"]

Build = Callable[[Inner], str]

_ATOM = re.compile(r"[\w.]+\Z")


class Edit(ABC):
    """One change that a fix makes to a source."""

    source: Source
    afterwards = False
    """Whether the edit is made when all others are: it tidies what they left behind."""

    @property
    def group(self) -> Hashable:
        """Edits with the same group are resolved together: those of one block, of one call."""
        return self

    @property
    def layout(self) -> Layout:
        """The layout of the source."""
        return Layout.of(self.source)

    def on(self, source: Source) -> Edit:
        """The same edit of a later text of the source; only for those made afterwards."""
        raise NotImplementedError

    @abstractmethod
    def changes(self, together: Sequence[Edit]) -> list[Change]:
        """The changes of all edits of one group, ``self`` being the first of them.

        Raises:
            Conflict: two of them contradict each other.
            ValueError: a node is not of the source, or is not one that the edit is made for.
        """


class Rewrite(Edit):
    """Text made of a node's own text: ``build`` gets an :class:`Inner` and returns the new text."""

    def __init__(self, source: Source, node: cst.CSTNode, build: Build) -> None:
        self.source = source
        self.node = node
        self.build = build

    def changes(self, together: Sequence[Edit]) -> list[Change]:
        layout = self.layout
        depth = layout.depth(self.node)
        loose = _is_operand(layout, self.node)

        def text(inner: Inner) -> str:
            new = self.build(inner)
            return f"({new})" if loose and not _is_tight(new) else new

        start, end = layout.span(self.node)
        return [Change(start, end, text, level=2 * depth)]


class Replace(Rewrite):
    """Other text in place of a node."""

    def __init__(self, source: Source, node: cst.CSTNode, text: str) -> None:
        super().__init__(source, node, lambda inner: text)
        self.text = text

    def changes(self, together: Sequence[Edit]) -> list[Change]:
        change = super().changes(together)[0]
        loose = _is_operand(self.layout, self.node) and not _is_tight(self.text)
        change.text = f"({self.text})" if loose else self.text
        return [change]


class Splice(Edit):
    """Other text in place of the offsets ``start`` to ``end``: for comments and what else is no node."""

    def __init__(self, source: Source, start: int, end: int, text: str) -> None:
        self.source = source
        self.start = start
        self.end = end
        self.text = text

    def changes(self, together: Sequence[Edit]) -> list[Change]:
        return [Change(self.start, self.end, self.text)]


def _is_operand(layout: Layout, node: cst.CSTNode) -> bool:
    """Whether a looser expression in place of ``node`` would be torn apart by what is around it."""
    if not isinstance(node, cst.BaseExpression) or node.lpar:
        return False
    parent = next(layout.ancestors(node))
    return isinstance(
        parent,
        cst.Attribute
        | cst.Call
        | cst.Subscript
        | cst.Await
        | cst.BinaryOperation
        | cst.UnaryOperation
        | cst.BooleanOperation
        | cst.Comparison
        | cst.ComparisonTarget
        | cst.IfExp
        | cst.NamedExpr,
    )


def _is_tight(text: str) -> bool:
    """Whether ``text`` is one name, call, literal or bracket, which nothing can tear apart."""
    if _ATOM.match(text):
        return True
    try:
        node = cst.parse_expression(text)
    except Exception:  # not an expression, or one that the parser refuses: leave it as it is
        return True
    return bool(node.lpar) or not isinstance(
        node,
        cst.Await
        | cst.BinaryOperation
        | cst.UnaryOperation
        | cst.BooleanOperation
        | cst.Comparison
        | cst.IfExp
        | cst.NamedExpr
        | cst.Lambda
        | cst.Yield
        | cst.Tuple
        | cst.GeneratorExp,
    )
