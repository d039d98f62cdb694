"""What is around the call that is rewritten: its statement, and what stands there with it."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fsdp2lint.api import Layout, walk


def only_target(statement: cst.CSTNode, call: cst.BaseExpression) -> cst.BaseExpression | None:
    """What ``statement`` assigns the call to, when it does only that."""
    if (
        isinstance(statement, cst.Assign)
        and statement.value is call
        and len(statement.targets) == 1
    ):
        target = statement.targets[0].target
        return target if isinstance(target, cst.Name | cst.Attribute | cst.Subscript) else None
    return None


def stands_alone(layout: Layout, statement: cst.CSTNode) -> bool:
    """Whether nothing shares the line of a statement."""
    line = layout.line(statement)
    return isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1


def is_last(layout: Layout, line: cst.CSTNode) -> bool:
    """Whether nothing follows a statement in its block."""
    body: Sequence[cst.CSTNode] = getattr(layout.parents[line], "body", ())
    return bool(body) and body[-1] is line


def bound_between(layout: Layout, call: cst.BaseExpression, statement: cst.CSTNode) -> set[str]:
    """The names that lambdas and comprehensions around a call bind."""
    found: set[str] = set()
    for around in layout.ancestors(call):
        if around is statement:
            break
        if isinstance(around, cst.Lambda):
            found |= {param.name.value for param in around.params.params}
        elif isinstance(around, cst.BaseComp):
            found |= {n.value for n in walk(around.for_in.target) if isinstance(n, cst.Name)}
    return found
