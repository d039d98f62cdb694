"""Names that one import binds in a ``try`` and another where that fails: which of the two some code means.

    try:
        import torch_xla.core.xla_model as xm
        from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
    except ImportError:
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        xm = None

Below ``if xm:`` the first is meant, below its ``else`` the second.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.names import Imported, Names, dotted
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk


def means(source: Source, one: Imported, node: cst.CSTNode) -> bool | None:
    """Whether ``node`` means a name as this import binds it; None where nothing around it tells."""
    layout = Layout.of(source)
    tried = next((a for a in layout.ancestors(one.alias) if isinstance(a, cst.Try)), None)
    first = None if tried is None else _is_in_body(layout, tried, one.alias)
    if tried is None or first is None:
        return None
    if tried in layout.ancestors(node):
        here = _is_in_body(layout, tried, node)
        return None if here is None else here is first
    outcomes = dict(_outcomes(tried))
    bound = Names.of(source).bindings.get(one.scope, {})
    for name, holds in _tests_around(layout, node):
        if name in outcomes and all(tried in layout.ancestors(b) for b in bound.get(name, ())):
            return (outcomes[name] is holds) is first
    return None


def tried_before(source: Source, one: Imported, node: cst.CSTNode) -> Imported | None:
    """The import of a ``try`` that binds the same name, where ``one`` is in the handler and nothing tells which is meant."""
    layout = Layout.of(source)
    tried = next((a for a in layout.ancestors(one.alias) if isinstance(a, cst.Try)), None)
    if tried is None or _is_in_body(layout, tried, one.alias) is not False:
        return None
    if means(source, one, node) is not None:
        return None
    others = (i for i in Names.of(source).imports_of[one.name] if i.scope is one.scope)
    return next((i for i in others if _is_in_body(layout, tried, i.alias)), None)


def may_be_meant(source: Source, one: Imported) -> bool:
    """Whether any code may mean a name as this import binds it."""
    layout = Layout.of(source)
    bound = {n for n in walk(source.tree) if isinstance(n, cst.Import | cst.ImportFrom)}
    return any(
        isinstance(node, cst.Name)
        and node.value == one.name
        and bound.isdisjoint(layout.ancestors(node))
        and means(source, one, node) is not False
        for node in walk(source.tree)
    )


def _is_in_body(layout: Layout, tried: cst.Try, node: cst.CSTNode) -> bool | None:
    """Whether a node is in what is tried; False in a handler, None elsewhere."""
    around = set(layout.ancestors(node))
    if tried.body in around:
        return True
    return False if around.intersection(tried.handlers) else None


def _outcomes(tried: cst.Try) -> Iterator[tuple[str, bool]]:
    """The names by which the script knows later what happened, and whether they are true when nothing was raised."""
    there = dict(_bound(tried.body))
    for name, holds in there.items():
        handlers = [dict(_bound(one.body)).get(name) for one in tried.handlers]
        if handlers and all(other is (not holds) for other in handlers):
            yield name, holds


def _bound(block: cst.BaseSuite) -> Iterator[tuple[str, bool]]:
    """The names that the lines of a block bind to a constant or a module, and whether that is true."""
    for line in block.body:
        for one in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(one, cst.Import | cst.ImportFrom):
                for alias in () if isinstance(one.names, cst.ImportStar) else one.names:
                    name = alias.asname.name if alias.asname is not None else alias.name
                    yield dotted(name).partition(".")[0], True
            elif isinstance(one, cst.Assign) and dotted(one.value) in ("True", "False", "None"):
                yield from ((dotted(t.target), dotted(one.value) == "True") for t in one.targets)


def _tests_around(layout: Layout, node: cst.CSTNode) -> Iterator[tuple[str, bool]]:
    """The names that tests around a node ask, and whether they are true where it is."""
    inner = node
    for outer in layout.ancestors(node):
        if isinstance(outer, cst.If | cst.IfExp) and inner is not outer.test:
            yield from _asked(outer.test, inner is outer.body)
        inner = outer


def _asked(test: cst.BaseExpression, holds: bool) -> Iterator[tuple[str, bool]]:
    """The names that are true, or false, where a test comes out like this."""
    if isinstance(test, cst.Name):
        yield test.value, holds
    elif isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        yield from _asked(test.expression, not holds)
    elif isinstance(test, cst.BooleanOperation):
        if isinstance(test.operator, cst.And) is holds:
            yield from _asked(test.left, holds)
            yield from _asked(test.right, holds)
    elif isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        target = test.comparisons[0]
        if dotted(target.comparator) == "None" and isinstance(test.left, cst.Name):
            if isinstance(target.operator, cst.Is | cst.IsNot):
                yield test.left.value, isinstance(target.operator, cst.IsNot) is holds
