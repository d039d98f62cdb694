"""Where an import goes, and whether one that is somewhere has run before some code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.names import dotted, imported_module
from fsdp2lint.edits.statements import Insert
from fsdp2lint.source.source import Source


@dataclass(frozen=True)
class Place:
    """``merge`` is an import to add to; else a new one comes before or after the statement ``beside``."""

    beside: cst.CSTNode
    module: str
    plain: str = ""
    """The name itself where the import is ``import name``: such imports are not joined."""
    after: bool = True
    gap: bool = False
    merge: cst.ImportFrom | None = None

    def text(self, source: Source, items: Sequence[str]) -> str:
        """The new statement, or those that import ``items`` themselves."""
        if not self.module:
            return "\n".join(f"import {item}" for item in items)
        text = f"from {self.module} import {', '.join(items)}"
        if len(text) > Layout.of(source).width and len(items) > 1:
            lines = "".join(f"    {item},\n" for item in items)
            return f"from {self.module} import (\n{lines})"
        return text


def inserts(source: Source, new: Sequence[tuple[Place, Sequence[str]]]) -> Iterator[Insert]:
    """The new statements; what makes a paragraph of its own makes one with others of its kind."""
    paragraphs: dict[tuple[cst.CSTNode, bool, bool], list[str]] = {}
    for place, items in sorted(new, key=lambda one: (bool(one[0].module), one[0].module)):
        text = place.text(source, items)
        if place.gap:
            foreign = (place.module or place.plain).partition(".")[0] not in sys.stdlib_module_names
            paragraphs.setdefault((place.beside, place.after, foreign), []).append(text)
        else:
            yield Insert(source, place.beside, text, after=place.after)
    for (beside, after, _), lines in sorted(paragraphs.items(), key=lambda one: one[0][2]):
        text = "\n".join(lines)
        below = "\n\n\n" if isinstance(beside, cst.FunctionDef | cst.ClassDef) else "\n\n"
        yield Insert(source, beside, f"\n{text}" if after else f"{text}{below}", after=after)


def place_for(source: Source, node: cst.CSTNode, module: str, name: str) -> Place:
    """Where ``from module import name`` (``import name`` without a module) belongs for use at ``node``."""
    layout = Layout.of(source)
    path = module or name
    plain = "" if module else name
    root = path.partition(".")[0]
    tried = [
        one
        for one in _imports(layout)
        if _key(one).partition(".")[0] == root and runs_before(layout, one, node)
    ]
    always = [one for one in tried if _always_runs(layout, one)]
    outer = [one for one in always if layout.block(one) is source.tree]
    for one in dict.fromkeys((*always, *(one for one in tried if _is_kept(layout, one)))) or tried:
        if isinstance(one, cst.ImportFrom) and _can_merge(one, module):
            return Place(one, module, merge=one)
    for group in (outer, always, tried):
        if group:
            beside, after = _sorted_into(group, path, bool(module))
            return Place(beside, module, plain, after)
    if root in sys.stdlib_module_names:
        head = _head(source)
        standard = [one for one in head if _key(one).partition(".")[0] in sys.stdlib_module_names]
        if standard:
            beside, after = _sorted_into(standard, path, bool(module))
            return Place(beside, module, plain, after)
        if head:
            return Place(head[0], module, plain, after=False, gap=True)
    return _at_top(source, module, plain)


def runs_before(layout: Layout, statement: cst.CSTNode, node: cst.CSTNode) -> bool:
    """Whether ``statement`` has run when ``node`` does, as far as blocks and functions tell.

    What is in a ``try`` counts: the script relies on it in the same way.
    """
    ancestors = list(layout.ancestors(node))
    block = layout.block(statement)
    for inner, around in zip([node, *ancestors], ancestors, strict=False):
        if around is not block:
            continue
        functions = ancestors[: ancestors.index(around)]
        deferred = any(isinstance(a, cst.FunctionDef | cst.Lambda) for a in (inner, *functions))
        return deferred or layout.span(statement)[0] < layout.span(node)[0]
    around_block = layout.parents.get(block)
    if isinstance(around_block, cst.Try | cst.With) and around_block.body is block:
        return runs_before(layout, around_block, node)
    return False


def _is_kept(layout: Layout, statement: cst.CSTNode) -> bool:
    """Whether the ``try`` that an import is in keeps in a name that the import worked: it stays, whatever is imported."""
    block = layout.block(statement)
    tried = layout.parents.get(block)
    if not isinstance(tried, cst.Try) or not isinstance(block, cst.IndentedBlock):
        return False
    lines = (one for one in block.body if isinstance(one, cst.SimpleStatementLine))
    return any(isinstance(one, cst.Assign) for line in lines for one in line.body)


def _always_runs(layout: Layout, statement: cst.CSTNode) -> bool:
    """Whether a statement runs with its function, or with the file."""
    block = layout.block(statement)
    return isinstance(layout.parents.get(block, block), cst.Module | cst.FunctionDef)


def _can_merge(statement: cst.ImportFrom, module: str) -> bool:
    return imported_module(statement) == module and not isinstance(statement.names, cst.ImportStar)


def _imports(layout: Layout) -> list[cst.Import | cst.ImportFrom]:
    # libcst's classes are abstract: to ask for instances of them is slow
    found = [n for n in layout.parents if type(n) is cst.Import or type(n) is cst.ImportFrom]
    return sorted(found, key=lambda n: layout.span(n)[0])


def _head(source: Source) -> list[cst.Import | cst.ImportFrom]:
    """The imports at the head of the file, those of the future apart."""
    found: list[cst.Import | cst.ImportFrom] = []
    for index, line in enumerate(source.tree.body):
        if isinstance(line, cst.SimpleStatementLine) and is_import(line):
            if not _is_future(line):
                found += (s for s in line.body if isinstance(s, cst.Import | cst.ImportFrom))
        elif not (index == 0 and is_docstring(line)) and not _is_cell(source, line):
            break
    return found


def _key(statement: cst.Import | cst.ImportFrom) -> str:
    """The module of an import."""
    if isinstance(statement, cst.ImportFrom):
        return imported_module(statement)
    return dotted(statement.names[0].name)


def _sorted_into(
    group: Sequence[cst.Import | cst.ImportFrom], module: str, is_from: bool
) -> tuple[cst.CSTNode, bool]:
    """The statement of a group that a new import comes beside, and whether after it."""
    split = [(isinstance(one, cst.ImportFrom), _key(one)) for one in group]
    flat = [(False, key) for _, key in split]
    for keys, new in ((split, (is_from, module)), (flat, (False, module))):
        if keys == sorted(keys):
            smaller = [one for one, key in zip(group, keys, strict=True) if key <= new]
            return (smaller[-1], True) if smaller else (group[0], False)
    return group[-1], True


def _at_top(source: Source, module: str, plain: str) -> Place:
    """After the imports at the head of the file, or where they would be."""
    body = source.tree.body
    head: cst.CSTNode | None = None
    imported = False
    for index, line in enumerate(body):
        if is_import(line):
            head, imported = line, True
        elif index == 0 and is_docstring(line):
            head = line
        elif not _is_cell(source, line):
            break
    future = head is not None and _is_future(head)
    if head is None:
        return Place(body[0], module, plain, after=False, gap=True)
    return Place(head, module, plain, gap=future or not imported)


def is_import(line: cst.CSTNode) -> bool:
    """Whether a line holds imports alone."""
    return isinstance(line, cst.SimpleStatementLine) and all(
        isinstance(small, cst.Import | cst.ImportFrom) for small in line.body
    )


def _is_cell(source: Source, line: cst.CSTNode) -> bool:
    """Whether a line is where a cell of a notebook begins."""
    if source.document is None or not isinstance(line, cst.SimpleStatementLine):
        return False
    small = line.body[0]
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.Ellipsis)


def is_docstring(line: cst.CSTNode) -> bool:
    """Whether a line is a text by itself: at the head of a block, what describes it."""
    if not isinstance(line, cst.SimpleStatementLine) or not isinstance(line.body[0], cst.Expr):
        return False
    return isinstance(line.body[0].value, cst.SimpleString | cst.ConcatenatedString)


def _is_future(line: cst.CSTNode) -> bool:
    small = line.body[-1] if isinstance(line, cst.SimpleStatementLine) else line
    return isinstance(small, cst.ImportFrom) and imported_module(small) == "__future__"
