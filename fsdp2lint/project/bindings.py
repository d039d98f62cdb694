"""What a module binds by its own imports, for whoever only passes through it.

``from pkg import name`` leads on to the file that ``pkg/__init__.py`` has it from, and on from there. For
these steps a file is read by :mod:`ast`, ten times faster than libcst reads it, and nothing of it is kept
but this table.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

MAX_KEPT = 512
"""The tables of so many texts are kept."""


class Import(NamedTuple):
    """What a name stands for: ``target`` is a dotted name, with its dots in front when it is relative.

    ``level`` counts these dots; it is None for ``import module``, which is what it says.
    """

    target: str
    level: int | None


class Bindings(NamedTuple):
    """The names of a module outside its functions and classes; ``names`` are those that imports bind."""

    names: dict[str, Import]
    stars: tuple[Import, ...]
    """The modules of which the file takes everything."""
    bound: frozenset[str]
    """What is bound in other ways."""
    renamed: frozenset[str]
    """What is perhaps another word for something imported: ``name = a.b``."""


@lru_cache(maxsize=MAX_KEPT)
def bindings(text: str) -> Bindings | None:
    """The table of a text; None when it is not what this Python can parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that are no escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    names: dict[str, Import] = {}
    bound: set[str] = set()
    renamed: set[str] = set()
    for statement in reversed(list(_statements(tree.body))):  # what is imported last counts
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for name, one in _imported(statement):
                names.setdefault(name, one)
            continue
        bound.update(_bound(statement))
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            if isinstance(statement.value, ast.Name | ast.Attribute):
                renamed.update(_bound(statement))
    stars = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.names[0].name == "*"]
    return Bindings(
        names,
        tuple(Import(_module(s), s.level) for s in stars),
        frozenset(bound),
        frozenset(renamed),
    )


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Statements and those inside their blocks, in the order of the text."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for block in ("body", "handlers", "orelse", "finalbody", "cases"):
                yield from _statements(getattr(statement, block, ()))


def _bound(statement: ast.AST) -> Iterator[str]:
    """The names that a statement binds, apart from those of imports and patterns."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.ExceptHandler):
        if statement.name is not None:
            yield statement.name
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from _stored(target)
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor):
        yield from _stored(statement.target)
    elif isinstance(statement, ast.With | ast.AsyncWith):
        for item in statement.items:
            if item.optional_vars is not None:
                yield from _stored(item.optional_vars)


def _stored(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _stored(element)
    elif isinstance(target, ast.Starred):
        yield from _stored(target.value)


def _imported(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Import]]:
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            if alias.name != "*":
                target = f"{_module(statement)}.{alias.name}"
                yield alias.asname or alias.name, Import(target, statement.level)
        elif alias.asname is not None:
            yield alias.asname, Import(alias.name, None)
        else:
            root = alias.name.partition(".")[0]
            yield root, Import(root, None)


def _module(statement: ast.ImportFrom) -> str:
    return "." * statement.level + (statement.module or "")
