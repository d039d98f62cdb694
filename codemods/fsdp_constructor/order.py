"""When a call is evaluated, beside the rest of its statement: what must come before it may not always stand above."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import Layout, walk

from .._common.origins import meaning
from .site import FSDP1, Construction


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
