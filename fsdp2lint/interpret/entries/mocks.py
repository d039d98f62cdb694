"""Tests that put something else in place of what they call: what happens in them happens in no run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

import libcst as cst

from fsdp2lint.model.values import Function
from fsdp2lint.source.deferred import unread
from fsdp2lint.source.source import Source

_IMPORTED = re.compile(r"\bmonkeypatch\b|\bmocker\b|\bmock\b")
_MOCKING = re.compile(
    r"\bmonkeypatch\.(?:setattr|setitem|delattr|delitem|context)\b|\bmonkeypatch\b(?!\.)"
    r"|\bmocker\b|\bMagicMock\b|\bpatch(?:\.(?:object|dict|multiple))?\s*\("
)
_HARMLESS = re.compile(
    r"""\bpatch\(\s*["'][\w.]+["'],\s*(?:["'][^"']*["']|\d+|True|False)\s*\)"""
    r"""|\bpatch\.dict\(\s*["']?os\.environ\b"""
)
"""A constant in place of another, or other variables of the environment."""

_BEFORE_EACH = ("setUp", "setUpClass", "setup_method", "setup_class")


def mocks(function: Function) -> bool:
    """Whether a function runs while what it calls is replaced: by ``monkeypatch``, or by ``patch`` of unittest."""
    source = function.scope.source
    if not _may_mock(source.said) or unread(function.node):
        return False
    around = [*_written(function.node), *_of_class(function), *_fixtures(function, source)]
    return any(_MOCKING.search(_HARMLESS.sub("", source.code(one))) for one in around)


@lru_cache(maxsize=500)
def _may_mock(text: str) -> bool:
    """Whether a file speaks of mocks: it is asked once for each of its functions."""
    return _IMPORTED.search(text) is not None


def _written(node: cst.FunctionDef | cst.Lambda) -> Iterator[cst.CSTNode]:
    """What a function does and what decorates it, without its parameters."""
    yield node.body
    if isinstance(node, cst.FunctionDef):
        yield from node.decorators


def _of_class(function: Function) -> Iterator[cst.CSTNode]:
    """What is around each test of a class: its decorators, and what unittest calls before."""
    if function.home is None:
        return
    yield from function.home.node.decorators
    for statement in function.home.node.body.body:
        if isinstance(statement, cst.FunctionDef) and statement.name.value in _BEFORE_EACH:
            yield from _written(statement)


def _fixtures(function: Function, source: Source) -> Iterator[cst.CSTNode]:
    """The fixtures of pytest in the same file that a function asks for by name, and those that all tests use."""
    params = function.node.params
    asked = {p.name.value for p in (*params.posonly_params, *params.params, *params.kwonly_params)}
    for statement in source.tree.body:
        if not isinstance(statement, cst.FunctionDef):
            continue
        for decorator in statement.decorators:
            text = source.code(decorator.decorator)
            if text.partition("(")[0].rpartition(".")[2] == "fixture":
                if statement.name.value in asked or "autouse=True" in text:
                    yield from _written(statement)
