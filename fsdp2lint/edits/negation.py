"""The opposite of a test, in the usual words."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

_OPPOSITE: dict[type[cst.BaseCompOp], str] = {
    cst.Equal: "!=",
    cst.NotEqual: "==",
    cst.LessThan: ">=",
    cst.GreaterThanEqual: "<",
    cst.GreaterThan: "<=",
    cst.LessThanEqual: ">",
    cst.Is: "is not",
    cst.IsNot: "is",
    cst.In: "not in",
    cst.NotIn: "in",
}


def negated(test: cst.BaseExpression, text: Callable[[cst.CSTNode], str]) -> str:
    """``a != b`` for ``a == b``, ``a`` for ``not a``; ``text`` gives the text of a node inside."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return text(test.expression)
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        (compared,) = test.comparisons
        operator = _OPPOSITE.get(type(compared.operator))
        if operator is not None:
            return f"{text(test.left)} {operator} {text(compared.comparator)}"
    said = text(test)
    tight = isinstance(test, cst.Name | cst.Attribute | cst.Call | cst.Subscript) or test.lpar
    return f"not {said}" if tight else f"not ({said})"
