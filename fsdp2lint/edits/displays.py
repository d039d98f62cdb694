"""Dictionaries that a file writes out: what is at each of their keys, and which ones reach a call."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.names import Names, dotted, scope_of
from fsdp2lint.model.basic_events import Moment
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk

Display = tuple[Source, cst.CSTNode]

MAX_DEPTH = 12
"""Through so many names and parameters a dictionary is followed."""


class NotInText(Exception):
    """Where a dictionary comes from is not written with names alone."""


def displays(source: Source) -> dict[cst.CSTNode, dict[str, cst.CSTNode]]:
    """Every ``{"key": value}`` and ``dict(key=value)`` with what writes each of its keys that are strings."""
    return {node: found for node in walk(source.tree) if (found := _written(node))}


def reaching(source: Source, node: cst.BaseExpression, moment: Moment) -> set[Display] | None:
    """The displays that ``node`` gets its value from at a moment; None where names alone do not say it.

    Names are followed to what binds them, parameters to the calls that led to the moment.
    """
    try:
        return set(_from(source, node, moment, 1, 0))
    except NotInText:
        return None


def _from(
    source: Source, node: cst.BaseExpression, moment: Moment, out: int, depth: int
) -> Iterator[Display]:
    """``out`` says how many calls further out than the moment ``node`` is."""
    if depth > MAX_DEPTH:
        raise NotInText
    if isinstance(node, cst.IfExp):
        yield from _from(source, node.body, moment, out, depth + 1)
        yield from _from(source, node.orelse, moment, out, depth + 1)
    elif isinstance(node, cst.Name):
        for other, value, further in _given(source, node, moment, out):
            yield from _from(other, value, moment, further, depth + 1)
    elif isinstance(node, cst.Dict):
        yield source, node
        for spread in node.elements:
            if isinstance(spread, cst.StarredDictElement):
                yield from _from(source, spread.value, moment, out, depth + 1)
    elif isinstance(node, cst.Call) and dotted(node.func) == "dict":
        yield source, node
        for arg in node.args:
            if arg.keyword is None:
                yield from _from(source, arg.value, moment, out, depth + 1)
    else:
        raise NotInText


def _given(
    source: Source, node: cst.Name, moment: Moment, out: int
) -> Iterator[tuple[Source, cst.BaseExpression, int]]:
    """What binds a name, and how far out that is."""
    names = Names.of(source)
    scope = names.owner(node.value, scope_of(Layout.of(source).ancestors(node)))
    for binding in names.bindings[scope][node.value] if scope is not None else ():
        if isinstance(binding, cst.Param):
            yield from _of_parameter(source, scope, binding, moment, out)
            continue
        assign = Layout.of(source).parents.get(binding)
        made = binding if isinstance(binding, cst.AnnAssign) else assign
        alone = isinstance(getattr(binding, "target", None), cst.Name)
        if not alone or not isinstance(made, cst.Assign | cst.AnnAssign) or made.value is None:
            raise NotInText
        yield source, made.value, out
    if scope is None:
        raise NotInText


def _of_parameter(
    source: Source, scope: cst.CSTNode | None, param: cst.Param, moment: Moment, out: int
) -> Iterator[tuple[Source, cst.BaseExpression, int]]:
    """What the call that led to the moment gives for a parameter; nothing where no run calls it."""
    if len(moment.inside) < out:
        raise NotInText
    if len(moment.calls) < out:
        return
    function, site = moment.inside[-out], moment.calls[-out]
    if function.node is not scope or function.scope.source is not source:
        raise NotInText
    params = function.node.params
    name = param.name.value
    spread = params.star_kwarg is param
    found = [a for a in getattr(site.node, "args", ()) if a.star == "**" and spread]
    found += [a for a in getattr(site.node, "args", ()) if a.keyword and a.keyword.value == name]
    if not found:
        raise NotInText
    yield from ((site.source, arg.value, out + 1) for arg in found)


def _written(node: cst.CSTNode) -> dict[str, cst.CSTNode]:
    if isinstance(node, cst.Dict):
        return {
            str(element.key.evaluated_value): element
            for element in node.elements
            if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString)
        }
    if isinstance(node, cst.Call) and getattr(node.func, "value", "") == "dict":
        return {arg.keyword.value: arg for arg in node.args if arg.keyword is not None}
    return {}
