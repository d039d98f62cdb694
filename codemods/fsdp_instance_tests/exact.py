"""Comparisons of exact types with FSDP1's class, by the class or by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Account,
    Edit,
    Layout,
    Program,
    Replace,
    Source,
    Splice,
    Step,
    name_for,
    walk,
)

from .._common.loop_classes import fsdp1_names
from .._common.loop_models import FSDP1, FSDP_MODULE
from .._common.loop_text import text_of
from .._common.names import whose_type
from .._common.shared import unimports

NAME = "FullyShardedDataParallel"
WHY = "fully_shard gives each module a class of its own: all derive from FSDPModule"
_OTHER = cst.IsNot | cst.NotEqual


def exact_types(program: Program) -> Iterator[Step]:
    """``type(x) is FSDP`` and ``x.__class__ in (FSDP, DDP)``."""
    for source in program.sources:
        mine = fsdp1_names(program, source)
        for node in walk(source.tree) if mine else ():
            if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
                continue
            subject = _whose_type(source, node.left)
            target = node.comparisons[0]
            asked = [c for c in _several(target.comparator) if c in mine]
            if not subject or not asked:
                continue
            others = [c for c in _several(target.comparator) if c not in mine]
            classes = [text_of(source, c) for c in others]
            yield _isinstance(program, source, node, subject, target.operator, classes, asked)


def type_names(program: Program) -> Iterator[Step]:
    """``type(x).__name__ == "FullyShardedDataParallel"``; other strings are the script's own words."""
    for source in program.sources:
        for node in walk(source.tree) if NAME in source.text else ():
            if not isinstance(node, cst.SimpleString | cst.FormattedStringText):
                continue
            if NAME not in node.value or isinstance(Layout.of(source).parents.get(node), cst.Expr):
                continue
            yield _type_name(program, source, node)


def _type_name(
    program: Program, source: Source, node: cst.SimpleString | cst.FormattedStringText
) -> Step:
    layout = Layout.of(source)
    comparison = next((a for a in layout.ancestors(node) if isinstance(a, cst.Comparison)), None)
    if comparison is not None and re.search(rf"\b{NAME}\b", node.value):
        step = _compared(program, source, comparison, node)
        if step is not None:
            return step
    why = "an unrelated string: nothing looks it up in torch"
    return Step((), (Account(source, node, "preserved", why),))


def _compared(
    program: Program, source: Source, comparison: cst.Comparison, node: cst.CSTNode
) -> Step | None:
    """The test of a type's name as a test of the class."""
    if len(comparison.comparisons) != 1:
        return None
    left, target = comparison.left, comparison.comparisons[0]
    if left is node and isinstance(target.operator, cst.In):
        subject = _whose_type(source, _named(target.comparator) or target.comparator)
        return (
            _isinstance(program, source, comparison, subject, cst.Is(), [], [node])
            if subject
            else None
        )
    named = _named(left)
    subject = "" if named is None else _whose_type(source, named)
    if not subject:
        return None
    several = list(_several(target.comparator))
    if node not in several:
        return None
    others = [text_of(source, one) for one in several if one is not node]
    if not others:
        return _isinstance(program, source, comparison, subject, target.operator, [], [node])
    return _or_name(source, comparison, target, subject, others, node)


def _or_name(
    source: Source,
    comparison: cst.Comparison,
    target: cst.ComparisonTarget,
    subject: str,
    others: list[str],
    node: cst.CSTNode,
) -> Step | None:
    """``type(x).__name__ in ("FullyShardedDataParallel", …)``: the class, or one of the other names."""
    name = name_for(source, comparison, FSDP_MODULE)
    test = f"isinstance({subject}, {name.text})"
    rest = f"({', '.join(others)}{',' if len(others) == 1 else ''})"
    if isinstance(target.operator, cst.In):
        text = f"{test} or {text_of(source, comparison.left)} in {rest}"
    elif isinstance(target.operator, cst.NotIn):
        text = f"not {test} and {text_of(source, comparison.left)} not in {rest}"
    else:
        return None
    account = Account(source, node, "changed", WHY)
    return Step((Replace(source, comparison, text), *name.edits), (account,))


def _isinstance(
    program: Program,
    source: Source,
    comparison: cst.Comparison,
    subject: str,
    operator: cst.BaseCompOp,
    others: Sequence[str],
    mine: Sequence[cst.CSTNode],
) -> Step:
    name = name_for(source, comparison, FSDP_MODULE)
    classes = name.text if not others else f"({', '.join([name.text, *others])})"
    text = f"isinstance({subject}, {classes})"
    if isinstance(operator, _OTHER | cst.NotIn):
        text = f"not {text}"
    layout = Layout.of(source)
    edits: tuple[Edit, ...] = (Replace(source, comparison, text), *name.edits)
    if isinstance(layout.parents[comparison], cst.BooleanOperation) and not comparison.lpar:
        edits = (Splice(source, *layout.span(comparison), text), *name.edits)
    accounts = tuple(Account(source, one, "changed", WHY) for one in mine)
    return Step((*edits, *unimports(program, source, FSDP1)), accounts)


def _named(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The type whose ``__name__`` this is, or the text that ``str(type(x))`` makes of it."""
    if isinstance(node, cst.Attribute) and node.attr.value in ("__name__", "__qualname__"):
        return node.value
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
        if node.func.value in ("str", "repr") and len(node.args) == 1:
            return node.args[0].value
    return None


def _whose_type(source: Source, node: cst.BaseExpression) -> str:
    """The text of ``x`` in ``type(x)`` and ``x.__class__``."""
    asked = whose_type(node)
    return "" if asked is None else text_of(source, asked)


def _several(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.Tuple | cst.List | cst.Set):
        yield from (element.value for element in node.elements)
    else:
        yield node
