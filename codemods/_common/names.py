"""Names of a function, and what values are: the questions that several parts of the constructor ask."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.api import (
    External,
    Instance,
    Layout,
    Literal,
    Names,
    Partial,
    Site,
    Source,
    Value,
    scope_of,
)


def function_scope(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    """The function, class or module around a node: what a statement there binds belongs to it."""
    layout = Layout.of(source)
    around = (node, *layout.ancestors(node))
    for one in around:
        if one is not node and isinstance(one, cst.FunctionDef | cst.ClassDef | cst.Module):
            return one
    return source.tree


def is_taken(source: Source, scope: cst.CSTNode, name: str) -> bool:
    """Whether a name means something in a scope, or is used there."""
    names = Names.of(source)
    if names.owner(name, scope) is not None:
        return True
    for used in names.uses.get(name, ()):
        at: cst.CSTNode | None = used
        while at is not None:
            if at is scope:
                return True
            at = names.scopes.get(at)
    return False


def named_once(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The value of the one assignment that binds a name of the same function; None for anything else."""
    if not isinstance(node, cst.Name):
        return None
    layout, names = Layout.of(source), Names.of(source)
    scope = names.owner(node.value, scope_of(layout.ancestors(node)))
    if scope is None or scope is not function_scope(source, node):
        return None
    made, *others = names.bindings[scope][node.value]
    if isinstance(made, cst.AnnAssign) and not others:
        return made.value
    assign = layout.parents.get(made)
    if others or not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    return assign.value if isinstance(assign.targets[0].target, cst.Name) else None


def uses(source: Source, name: cst.Name) -> int:
    """How often a name of the same function is read."""
    layout, names = Layout.of(source), Names.of(source)
    scope = names.owner(name.value, scope_of(layout.ancestors(name)))
    count = sum(names.owner(name.value, at) is scope for at in names.uses.get(name.value, ()))
    if scope is source.tree and name.value in names.exported:
        count += 1
    return count


def external(value: Value) -> str:
    """The dotted name of something outside the project; empty for anything else."""
    return value.name if isinstance(value, External) else ""


def class_of(value: Value) -> str:
    """The dotted name of the class, outside the project, that a value is an object of."""
    return external(value.cls) if isinstance(value, Instance) else ""


def born(value: Value) -> Site | None:
    """The call that made an object or a partial."""
    return value.born if isinstance(value, Instance | Partial) else None


def whose_type(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The ``x`` of ``type(x)`` and ``x.__class__``."""
    if isinstance(node, cst.Attribute) and node.attr.value == "__class__":
        return node.value
    if isinstance(node, cst.Call) and len(node.args) == 1:
        if isinstance(node.func, cst.Name) and node.func.value == "type":
            return node.args[0].value
    return None


def is_none(value: Value) -> bool:
    """Whether a value is the constant None."""
    return isinstance(value, Literal) and value.value is None


def is_off(value: Value) -> bool:
    """Whether a value is None or False: FSDP1 reads settings as ``mixed_precision or MixedPrecision()``."""
    return isinstance(value, Literal) and (value.value is None or value.value is False)


OFF = ("None", "False")
"""How such a setting is written."""
