"""Two branches that have come to the same become one."""

from __future__ import annotations

from collections.abc import Iterator, Set

import libcst as cst

from fsdp2lint.api import Inner, Layout, Program, Rewrite, Source, Step, Unimport, walk

from .._common.loop_models import FSDP_MODULE
from .._common.loop_text import has_comment, same_text

_QUIET = frozenset({"isinstance", "hasattr"})


def merged_branches(program: Program, functions: Set[cst.CSTNode]) -> Iterator[Step]:
    """``if …: f(x)`` with the same ``else`` becomes ``f(x)``; ``functions`` are the nodes of ``f``."""
    for source in program.sources:
        for node in source.derived(_branches):
            kept = _same(source, node, functions)
            if kept is not None:
                yield _merged(source, node, kept)


def _branches(source: Source) -> tuple[cst.If, ...]:
    """The tests of a file that are no ``elif``."""
    parents = Layout.of(source).parents
    every = (node for node in walk(source.tree) if isinstance(node, cst.If))
    return tuple(node for node in every if not isinstance(parents[node], cst.If))


def _same(source: Source, node: cst.If, functions: Set[cst.CSTNode]) -> cst.CSTNode | None:
    """The statement that both branches are."""
    if not isinstance(node.orelse, cst.Else) or not _is_quiet(node.test):
        return None
    one, other = _only(node.body), _only(node.orelse.body)
    if one is None or other is None or not any(n in functions for n in walk(one)):
        return None
    layout = Layout.of(source)
    if has_comment(source, layout.span(node)[0], layout.span(other)[0]):
        return None
    return other if same_text(*(_spelled(source, n, functions) for n in (one, other))) else None


def _spelled(source: Source, node: cst.CSTNode, functions: Set[cst.CSTNode]) -> str:
    """The text of a statement in which a function has one spelling, however it is imported."""
    layout = Layout.of(source)
    start, end = layout.span(node)
    text = source.text[start:end]
    for one in walk(node):
        if one in functions:
            first, last = (offset - start for offset in layout.span(one))
            return text[:first] + "f" + text[last:]
    return text


def _only(body: cst.BaseSuite) -> cst.CSTNode | None:
    """The one statement of a block."""
    lines = body.body
    if len(lines) != 1 or not isinstance(lines[0], cst.SimpleStatementLine):
        return None
    return lines[0].body[0] if len(lines[0].body) == 1 else None


def _is_quiet(test: cst.BaseExpression) -> bool:
    """Whether it makes no difference that a test is no longer asked."""
    return all(
        isinstance(node.func, cst.Name) and node.func.value in _QUIET
        for node in walk(test)
        if isinstance(node, cst.Call)
    )


def _merged(source: Source, node: cst.If, kept: cst.CSTNode) -> Step:
    layout = Layout.of(source)
    outer = layout.indentation(node)
    inner_indent = layout.indentation(layout.line(kept))

    def build(inner: Inner) -> str:
        lines = inner(kept).split(layout.newline)
        return layout.newline.join(
            outer + line[len(inner_indent) :] if number and line.startswith(inner_indent) else line
            for number, line in enumerate(lines)
        )

    return Step((Rewrite(source, node, build), Unimport(source, FSDP_MODULE)), ())
