"""Which methods of a class give its objects what ``__init__`` leaves to them: they run before those that need it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.interpret.functions import methods_of
from fsdp2lint.model.values import Class, Function, lineage
from fsdp2lint.source.walk import walk


def those_that_fill_first(cls: Class, methods: list[Function]) -> list[Function]:
    """Methods in their order, but first those that set an attribute which others only read, and which ``__init__`` sets to
    None or not at all (``self.model`` of a ``setup``).
    """
    begun = {
        name
        for base in lineage(cls)
        if isinstance(base, Class)
        for method in methods_of(base)
        if method.name == "__init__"
        for name in _filled(method.node)
    }
    fills = {method: set(_filled(method.node)) - begun for method in methods}
    needed = {
        name for method in methods for name in _attributes(method.node) if name not in fills[method]
    }
    return sorted(methods, key=lambda method: fills[method].isdisjoint(needed))


def _attributes(node: cst.CSTNode) -> Iterator[str]:
    """The names of the attributes of ``self`` in a piece of code."""
    for one in walk(node):
        if (
            isinstance(one, cst.Attribute)
            and isinstance(one.value, cst.Name)
            and one.value.value == "self"
        ):
            yield one.attr.value


def _filled(method: cst.CSTNode) -> Iterator[str]:
    """The attributes of the object that a method gives something else than None."""
    for one in walk(method):
        if isinstance(one, cst.Assign) and not _is_none(one.value):
            for target in one.targets:
                yield from _written(target.target)
        elif isinstance(one, cst.AnnAssign) and one.value is not None and not _is_none(one.value):
            yield from _written(one.target)


def _written(target: cst.BaseExpression) -> Iterator[str]:
    """The attributes of ``self`` that a target names, none of what is below them."""
    if isinstance(target, cst.Tuple | cst.List):
        for element in target.elements:
            yield from _written(element.value)
    elif isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name):
        yield from _attributes(target)


def _is_none(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Name) and value.value == "None"
