"""Names that a loop counts up: what the walk of two rounds leaves in them is not what the run does."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Layout, Site, dotted, walk

_GROWING = ("append", "extend", "insert", "add", "update", "pop")


def counted(site: Site) -> bool:
    """Whether what is at a site is computed from something that a loop changes round by round.

    The names of the function around it (of the module) are followed through its assignments.
    """
    scope = _scope(site)
    changed = set(_changed_in_loops(scope))
    if not changed:
        return False
    assignments = list(_assignments(scope))
    grows = True
    while grows:
        grows = False
        for target, value in assignments:
            if target not in changed and changed & set(_names(value)):
                changed.add(target)
                grows = True
    return bool(changed & set(_names(site.node)))


def _scope(site: Site) -> cst.CSTNode:
    return Layout.of(site.source).function(site.node) or site.source.tree


def _changed_in_loops(scope: cst.CSTNode) -> Iterator[str]:
    for loop in walk(scope, into=False):
        if not isinstance(loop, cst.For | cst.While):
            continue
        for target, value in _assignments(loop.body):
            if target in _names(value):
                yield target
        for node in walk(loop.body, into=False):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
                if node.func.attr.value in _GROWING and dotted(node.func.value):
                    yield dotted(node.func.value)


def _assignments(scope: cst.CSTNode) -> Iterator[tuple[str, cst.CSTNode]]:
    """What is assigned to names and attributes: ``n += 1`` is what ``n`` was and more."""
    for node in walk(scope, into=False):
        if isinstance(node, cst.AugAssign):
            yield _base(node.target), node
        elif isinstance(node, cst.NamedExpr | cst.AnnAssign) and node.value is not None:
            yield _base(node.target), node.value
        elif isinstance(node, cst.Assign):
            for target in node.targets:
                for one in _targets(target.target):
                    yield one, node.value


def _targets(target: cst.BaseExpression) -> Iterator[str]:
    if isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _targets(element.value)
    else:
        yield _base(target)


def _base(target: cst.BaseExpression) -> str:
    """The name or attribute that an assignment changes: ``sizes`` for ``sizes[i]``."""
    while isinstance(target, cst.Subscript):
        target = target.value
    return dotted(target)


def _names(node: cst.CSTNode) -> Iterator[str]:
    for one in walk(node):
        if isinstance(one, cst.Name | cst.Attribute) and dotted(one):
            yield dotted(one)
