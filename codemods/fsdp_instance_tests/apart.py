"""Programs that know FSDP1 and FSDP2: tests for the class of one beside tests for that of the other."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Event, Guard, Layout, Program, Replace, Source, Splice, Value

from .._common.loop_models import FSDP1, FSDP_MODULE
from .._common.loop_text import text_of


def tests_apart(program: Program) -> frozenset[cst.CSTNode]:
    """The tests for FSDP1's class of a model of which the same run asks elsewhere whether FSDP2 has sharded it."""
    if not any(program.references(FSDP1)) or not any(program.references(FSDP_MODULE)):
        return frozenset()
    found: set[cst.CSTNode] = set()
    for trace in program.traces:
        guards = {id(guard): guard for event in trace for guard in _guards(event)}
        asked = [(guard, _asked(guard.test)) for guard in guards.values()]
        sharded = {
            g.test.owner for g, names in asked if FSDP_MODULE in names and FSDP1 not in names
        }
        for guard, names in asked:
            alone = FSDP1 in names and FSDP_MODULE not in names
            if alone and guard.test.owner in sharded and guard.site is not None:
                found.add(guard.site.node)
    return frozenset(found)


def _guards(event: Event) -> Iterator[Guard]:
    for clause in event.guards.clauses:
        yield from clause


def _asked(test: Value) -> tuple[str, ...]:
    """The names of the classes for which a test asks by ``isinstance``."""
    key = test.key
    if not isinstance(key, tuple) or key[0] != "isinstance":
        return ()
    return tuple(getattr(one, "name", "") for one in key[1:])


def beside_fsdp2(
    program: Program, source: Source, node: cst.BaseExpression
) -> Replace | Splice | None:
    """The edit that drops FSDP1's class from ``(FSDP, FSDPModule)`` or ``FSDP | FSDPModule``."""
    mine = {r.node for r in program.named(source) if r.name == FSDP_MODULE}
    parents = Layout.of(source).parents
    parent = parents[node]
    if isinstance(parent, cst.Element):
        classes = parents[parent]
        if isinstance(classes, cst.Tuple) and any(one.value in mine for one in classes.elements):
            others = [text_of(source, e.value) for e in classes.elements if e is not parent]
            tested = isinstance(parents[classes], cst.Arg)
            alone = len(others) == 1
            text = others[0] if alone and tested else f"({', '.join(others)}{',' * alone})"
            return Splice(source, *Layout.of(source).whole(classes), text)
    if isinstance(parent, cst.BinaryOperation) and isinstance(parent.operator, cst.BitOr):
        top = parent
        while isinstance(above := parents[top], cst.BinaryOperation):
            top = above
        if any(one in mine for one in _operands(top)):
            kept = parent.right if parent.left is node else parent.left
            return Replace(source, parent, text_of(source, kept))
    return None


def _operands(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.BinaryOperation):
        yield from _operands(node.left)
        yield from _operands(node.right)
    else:
        yield node
