"""Where the script uses a name or an attribute after a call, as it is written."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Layout, Site, walk


def function_of(site: Site) -> cst.CSTNode:
    """The function that a site is in, or the module."""
    function = Layout.of(site.source).function(site.node)
    return site.source.tree if function is None else function.body


def names_after(site: Site, name: str) -> Iterator[cst.Name]:
    """Where a name is after a call, in the same function."""
    layout = Layout.of(site.source)
    end = layout.span(site.node)[1]
    for node in walk(function_of(site)):
        if is_name(node, name) and isinstance(node, cst.Name) and layout.span(node)[0] >= end:
            above = layout.parents.get(node)
            attribute = isinstance(above, cst.Attribute) and above.attr is node
            if not attribute and not (isinstance(above, cst.Arg) and above.keyword is node):
                yield node


def is_name(node: cst.CSTNode, name: str) -> bool:
    """Whether a node is that name."""
    return isinstance(node, cst.Name) and node.value == name


def bound_by(site: Site, node: cst.CSTNode) -> cst.CSTNode | None:
    """The assignment or loop that binds a name or attribute; None where it is read."""
    parents = Layout.of(site.source).parents
    above = parents.get(node)
    while isinstance(above, cst.Tuple | cst.List | cst.Element | cst.StarredElement):
        node, above = above, parents.get(above)
    if isinstance(above, cst.AssignTarget):
        return parents.get(above)
    binds = isinstance(above, cst.For | cst.CompFor | cst.AnnAssign | cst.NamedExpr)
    if binds and getattr(above, "target", None) is node:
        return above
    return above if isinstance(above, cst.AsName | cst.Param | cst.Del) else None


def attribute_used(site: Site, value: cst.Attribute) -> bool:
    """Whether an attribute is read somewhere and not set again after the load."""
    layout, source = Layout.of(site.source), site.source
    path, end = source.code(value), layout.span(site.node)[1]
    uses = [
        node
        for node in walk(source.tree)
        if isinstance(node, cst.Attribute)
        and node.attr.value == value.attr.value
        and source.code(node) == path
    ]
    home = set(walk(function_of(site)))
    if any(n in home and bound_by(site, n) and layout.span(n)[0] >= end for n in uses):
        return False
    return any(
        bound_by(site, n) is None and not isinstance(layout.parents.get(n), cst.DictElement)
        for n in uses
    )
