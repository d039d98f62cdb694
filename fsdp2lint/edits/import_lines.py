"""Imports that came to be on several lines for names that are gone again: back on one line."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import libcst as cst

from fsdp2lint.edits.changes import Change
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.names import imported_module
from fsdp2lint.edits.text import Edit
from fsdp2lint.source.source import Source
from fsdp2lint.source.walk import walk


class OnOneLine(Edit):
    """An import of several lines written on one, without parentheses."""

    def __init__(self, source: Source, statement: cst.ImportFrom, text: str) -> None:
        self.source = source
        self.statement = statement
        self.text = text

    @property
    def group(self) -> Hashable:
        return OnOneLine, self.statement

    def changes(self, together: Sequence[Edit]) -> list[Change]:
        return [Change(*self.layout.span(self.statement), self.text)]


def on_one_line(old: Source, new: Source) -> list[OnOneLine]:
    """The imports of a text that would fit on one line, from modules that the text it came from does not
    import on several.
    """
    if new.text.count("import (") <= old.text.count("import ("):
        return []
    known = {imported_module(one) for one in _on_several(old)}
    found: list[OnOneLine] = []
    for statement in _on_several(new):
        layout = Layout.of(new)
        start, end = layout.span(statement)
        written = layout.text[start:end]
        if imported_module(statement) in known or "#" in written:
            continue
        head, _, rest = written.partition("(")
        names = [part.strip() for part in rest.rpartition(")")[0].split(",")]
        text = " ".join(head.split()) + " " + ", ".join(name for name in names if name)
        column = start - layout.line_start(start)
        if column + len(text) <= layout.width:
            found.append(OnOneLine(new, statement, text))
    return found


def _on_several(source: Source) -> list[cst.ImportFrom]:
    """The imports whose names are in parentheses on several lines."""
    layout = Layout.of(source)
    found = [n for n in walk(source.tree) if isinstance(n, cst.ImportFrom) and n.lpar is not None]
    return [n for n in found if "\n" in layout.text[slice(*layout.span(n))]]
