"""Counts that an object of the script gives to a checkpoint and does not take out of it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Class,
    Instance,
    Layout,
    Loaded,
    Source,
    Stepped,
    Trace,
    Value,
    lineage,
    options,
    walk,
)

from .uses import is_name


def given_and_not_taken(trace: Trace, loaded: Loaded) -> Iterator[tuple[str, str, str]]:
    """Of the objects that a load gives their state: the class, the attribute that counts, and the key that is not read."""
    if loaded.into is None or next(trace.after(loaded, Stepped), None) is None:
        return
    for _, entry in list(trace.memory.entries(loaded.into)):
        for one in options(entry):
            given, taking = _method(one, "state_dict"), _method(one, "load_state_dict")
            if given is None or taking is None:
                continue
            read = _keys_read(*taking)
            if read is None:
                continue
            for key, kept in _kept(given[1]):
                if key in read or _set(taking[1], kept):
                    continue
                if _begins_at_zero(one, kept) or _is_counted(trace, kept):
                    yield given[0], kept, key


def _method(value: Value, name: str) -> tuple[str, cst.FunctionDef, Source] | None:
    """The method of an object, with the name and the file of the class that has it."""
    for cls in lineage(value.cls) if isinstance(value, Instance) else ():
        if isinstance(cls, Class):
            for node in cls.node.body.body:
                if isinstance(node, cst.FunctionDef) and node.name.value == name:
                    return cls.name, node, cls.scope.source
    return None


def _kept(function: cst.FunctionDef) -> Iterator[tuple[str, str]]:
    """The keys of the dictionary that a method returns, under which attributes of its own are."""
    returned = [n.value for n in walk(function) if isinstance(n, cst.Return)]
    named = {one.value for one in returned if isinstance(one, cst.Name)}
    bound = [
        n.value
        for n in walk(function)
        if isinstance(n, cst.Assign)
        and any(is_name(t.target, name) for t in n.targets for name in named)
    ]
    for display in (*returned, *bound):
        for element in display.elements if isinstance(display, cst.Dict) else ():
            if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
                if isinstance(element.value, cst.Attribute) and is_name(
                    element.value.value, "self"
                ):
                    yield str(element.key.evaluated_value), element.value.attr.value


def _keys_read(_: str, function: cst.FunctionDef, source: Source) -> set[str] | None:
    """The keys for which a method asks the dictionary that it is given; None where it does anything else with it."""
    parameters = function.params.params
    if len(parameters) < 2:
        return None
    name, parents = parameters[1].name, Layout.of(source).parents
    found: set[str] = set()
    for node in walk(function.body):
        if not is_name(node, name.value):
            continue
        above = parents.get(node)
        asked: cst.CSTNode | None = None
        if isinstance(above, cst.Subscript) and above.value is node:
            index = above.slice[0].slice
            asked = index.value if isinstance(index, cst.Index) else None
        elif isinstance(above, cst.Attribute) and above.attr.value in ("get", "pop"):
            call = parents.get(above)
            asked = call.args[0].value if isinstance(call, cst.Call) and call.args else None
        elif isinstance(above, cst.ComparisonTarget):
            compared = parents.get(above)
            asked = compared.left if isinstance(compared, cst.Comparison) else None
        if not isinstance(asked, cst.SimpleString):
            return None
        found.add(str(asked.evaluated_value))
    return found


def _set(function: cst.FunctionDef, attribute: str) -> bool:
    """Whether a method sets an attribute of its own."""
    return any(
        isinstance(n, cst.AssignTarget)
        and isinstance(n.target, cst.Attribute)
        and n.target.attr.value == attribute
        for n in walk(function)
    )


def _begins_at_zero(value: Value, attribute: str) -> bool:
    """Whether the class of an object says that an attribute begins with 0: a field, or in its ``__init__``."""
    for cls in lineage(value.cls) if isinstance(value, Instance) else ():
        for node in walk(cls.node.body) if isinstance(cls, Class) else ():
            targets: list[cst.BaseExpression] = []
            if isinstance(node, cst.AnnAssign):
                targets = [node.target]
            elif isinstance(node, cst.Assign):
                targets = [one.target for one in node.targets]
            named = any(is_name(t, attribute) or _is_own(t, attribute) for t in targets)
            begun = getattr(node, "value", None) if named else None
            if isinstance(begun, cst.Integer) and begun.value == "0":
                return True
    return False


def _is_own(target: cst.BaseExpression, attribute: str) -> bool:
    if not isinstance(target, cst.Attribute) or target.attr.value != attribute:
        return False
    return is_name(target.value, "self")


def _is_counted(trace: Trace, attribute: str) -> bool:
    """Whether the script counts with an attribute: ``self.step += 1``."""
    return any(
        isinstance(node, cst.AugAssign)
        and isinstance(node.operator, cst.AddAssign)
        and isinstance(node.target, cst.Attribute)
        and node.target.attr.value == attribute
        and not isinstance(node.value, cst.List | cst.ListComp | cst.Tuple)
        for source in trace.sources
        for node in walk(source.tree)
    )
