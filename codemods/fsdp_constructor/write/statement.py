"""The statement around the call that is rewritten: what it assigns, and what must come before the call."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import Layout, walk

from ..._common.origins import meaning
from ..site import FSDP1, Construction


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


def is_deferred(layout: Layout, call: cst.BaseExpression, statement: cst.CSTNode) -> bool:
    """Whether the call is evaluated only sometimes, or more than once, where its statement runs."""
    inner: cst.CSTNode = call
    for around in layout.ancestors(call):
        if around is statement:
            return False
        if isinstance(around, cst.Lambda | cst.BaseComp | cst.BooleanOperation | cst.CompFor):
            return True
        if isinstance(around, cst.IfExp) and around.test is not inner:
            return True
        inner = around
    return False


def follows_others(site: Construction, statement: cst.CSTNode) -> bool:
    """Whether the module is made by a call, after other calls of the statement that stay where they are.

    Made above the statement it would come first: other random numbers would be drawn for it.
    """
    makes = any(isinstance(one, cst.Call) for one in walk(site.module))
    start, around = site.layout.span(site.call)[0], set(site.layout.ancestors(site.call))
    todo, earlier = [statement] if makes else [], False
    while todo:
        node = todo.pop()
        if isinstance(node, cst.Call) and node not in around:
            moved = meaning(site.program, site.source, node.func) == FSDP1
            if moved or site.layout.span(node)[0] >= start:
                continue
            earlier = True
        todo += node.children
    return earlier
