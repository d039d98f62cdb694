"""A Jupyter notebook as one program: its Python cells in their order.

Between two cells stands a statement that does nothing and says which cell begins. Unlike a comment it
belongs to no other statement, so no edit moves it or takes it away, and a changed program falls into the
same cells again.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fsdp2lint.source.documents import magics
from fsdp2lint.source.documents.cells import cells, line_numbers, respelled
from fsdp2lint.source.source import Document, Part, Range, Source, Unreadable

_BORDER = re.compile(r"^\.\.\.#:cell (\d+):\n", re.MULTILINE)


def notebook(raw: bytes, path: str) -> Source:
    """The program of a notebook.

    Raises:
        Unreadable: no notebook of Python in format 4.
    """
    bom = raw.startswith(b"\xef\xbb\xbf")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"cannot decode the notebook: {error}") from error
    found = Notebook(text)
    return Source(path, found.program, bom=bom, document=found)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A cell in the text of a program."""

    number: int
    first: int
    """The line on which it begins, counted from 1."""
    text: str


class Notebook(Document):
    """The JSON of a notebook, and how programs come out of it and go back.

    Raises:
        Unreadable: no notebook of Python in format 4.
    """

    def __init__(self, raw: str) -> None:
        self.raw = raw
        self.cells = [cell for cell in cells(raw) if magics.is_python(cell.text)]
        self._magics: list[str] = []
        hidden = [magics.hidden(cell.text, self._magics) + "\n" for cell in self.cells]
        borders = ["", *(f"...#:cell {cell.number}:\n" for cell in self.cells[1:])]
        self.program = "".join(b + h for b, h in zip(borders, hidden, strict=False))

    def text(self, program: str) -> str:
        """The notebook with the cells of a changed program."""
        pieces, at = [], 0
        for cell, stretch in zip(self.cells, self._split(program), strict=True):
            new = _trimmed(stretch.text, cell.text)
            if new != cell.text:
                value = respelled(self.raw[cell.start : cell.end], new, escape=self._escapes)
                pieces += [self.raw[at : cell.start], value]
                at = cell.end
        return "".join((*pieces, self.raw[at:]))

    def parts(self, source: Source) -> Sequence[Part]:
        """The cells of a program, each as a text of its own."""
        known = {cell.number: cell for cell in self.cells}
        found = []
        for stretch in self._split(source.text):
            cell = known[stretch.number]
            text = _trimmed(stretch.text, cell.text)
            lines = line_numbers(self.raw, cell) if text == cell.text else ()
            own = Source(source.path, text, cell=stretch.number, physical=lines)
            cut = 0 if stretch.text.startswith(text) else _newlines_above(stretch.text)
            found.append(Part(own, stretch.first + cut))
        return found

    def place(self, source: Source, at: Range) -> tuple[Source, Range]:
        """The cell in which a span begins, and the span in it."""
        parts = source.parts
        if not parts:
            return source, at
        index = max(0, bisect_right([part.first for part in parts], at.line) - 1)
        part = parts[index]
        start = _inside(part, at.line, at.column)
        end = max(start, _inside(part, at.end_line, at.end_column))
        return part.source, Range(*start, *end)

    @cached_property
    def _escapes(self) -> bool:
        """Whether what is not ASCII is written with escapes."""
        return (
            self.raw.isascii() and re.search(r"\\u(?!00[0-7])[0-9a-fA-F]{4}", self.raw) is not None
        )

    def _split(self, program: str) -> list[_Stretch]:
        borders = list(_BORDER.finditer(program))
        numbers = [int(match[1]) for match in borders]
        if numbers != [cell.number for cell in self.cells[1:]]:
            raise Unreadable("the change would reach over the border of a cell")
        starts = [0, *(match.end() for match in borders)]
        ends = [*(match.start() for match in borders), len(program)]
        found, line, at = [], 1, 0
        for cell, start, end in zip(self.cells, starts, ends, strict=False):
            line += program.count("\n", at, start)
            at = start
            found.append(
                _Stretch(cell.number, line, magics.shown(program[start:end], self._magics))
            )
        return found


def _trimmed(stretch: str, old: str) -> str:
    """The text of a cell without the newline that every stretch ends in, and no new empty lines around it."""
    text = stretch.removesuffix("\n")
    if text == old:
        return text
    if not old.endswith("\n"):
        text = text.rstrip("\n")
    return text if old.startswith("\n") else text.lstrip("\n")


def _newlines_above(text: str) -> int:
    return len(text) - len(text.lstrip("\n"))


def _inside(part: Part, line: int, column: int) -> tuple[int, int]:
    """A place of the program as one of the cell; what lies beyond is its end."""
    lines = part.source.lines
    number = line - part.first + 1
    if number > len(lines):
        return len(lines), len(lines[-1]) + 1
    return max(number, 1), min(column, len(lines[number - 1]) + 1)
