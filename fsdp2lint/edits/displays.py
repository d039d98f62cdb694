"""Dictionaries that a file writes out: what stands at each of their keys."""

from __future__ import annotations

import libcst as cst

from fsdp2lint.source import Source
from fsdp2lint.walk import walk


def displays(source: Source) -> tuple[dict[str, cst.CSTNode], ...]:
    """Every ``{"key": value}`` and ``dict(key=value)``, by the keys that are strings."""
    return tuple(found for node in walk(source.tree) if (found := _written(node)))


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
