"""A Jupyter notebook as one program: its Python cells in their order.

Between two cells is a statement that does nothing and says which cell begins. Unlike a comment it
belongs to no other statement, so no edit moves it or takes it away, and a changed program falls into the
same cells again.

The cells in the JSON of a notebook, with their places in it, so that one can change and nothing else.

https://nbformat.readthedocs.io/en/latest/format_description.html
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fsdp2lint.source.documents import magics
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


_SPACE = re.compile(r"[ \t\r\n]*")
_LINE = re.compile(r"(?:[^\\]|\\[^n])*(?:\\n|\Z)", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell of Python: its ``number`` among all cells (from 1), its text, and its JSON."""

    number: int
    text: str
    start: int
    end: int
    """Where the value of ``source`` is in the JSON."""


def cells(raw: str) -> list[Cell]:
    """The cells of Python in a notebook.

    Raises:
        Unreadable: no notebook, one of another format, or one in another language.
    """
    try:
        data = json.loads(raw)
    except json.JSONDecodeError as error:
        said = f"not a notebook: {error.msg.lower()}"
        raise Unreadable(said, error.lineno, error.colno) from error
    except RecursionError as error:
        raise Unreadable("not a notebook: nested too deeply") from error
    _check(data)
    return [
        Cell(number, "".join(cell["source"]), *place)
        for number, (cell, place) in enumerate(zip(data["cells"], _places(raw), strict=True), 1)
        if cell.get("cell_type") == "code" and _is_python(cell)
    ]


def respelled(value: str, text: str, *, escape: bool) -> str:
    """The JSON of ``text`` in the manner of the JSON that it replaces: a string, or a list of lines.

    Lines that were there before keep their spelling; with ``escape`` new ones are pure ASCII.
    """
    strings = list(_STRING.finditer(value))
    known: dict[str, str] = {}
    for string in strings:
        for piece in _LINE.findall(string[0][1:-1]):
            known.setdefault(json.loads(f'"{piece}"', strict=False), piece)
    new = (known.get(line) or json.dumps(line, ensure_ascii=escape)[1:-1] for line in _lines(text))
    spelled = list(new)
    if not value.startswith("["):
        return f'"{"".join(spelled)}"'
    if not spelled:
        return "[]"
    before, between, behind = _gaps(value, strings)
    return "[" + before + between.join(f'"{line}"' for line in spelled) + behind + "]"


def line_numbers(raw: str, cell: Cell) -> list[int]:
    """The line of the file on which each line of a cell is."""
    first = raw.count("\n", 0, cell.start) + 1
    value = raw[cell.start : cell.end]
    numbers: list[int] = []
    for string in _STRING.finditer(value):
        line = first + value.count("\n", 0, string.start())
        pieces = [p for p in _LINE.findall(string[0][1:-1]) if p]
        numbers += [line] * len(pieces)
    return numbers or [first]


def _check(data: Any) -> None:
    if not isinstance(data, dict) or "nbformat" not in data:
        raise Unreadable("not a notebook: it has no `nbformat`")
    if data["nbformat"] != 4:
        raise Unreadable(
            f"a notebook of format {data['nbformat']}: only format 4 is read "
            "(`jupyter nbconvert --to notebook` converts it)"
        )
    listed = data.get("cells")
    if not isinstance(listed, list) or not all(map(_is_cell, listed)):
        raise Unreadable("not a notebook: `cells` is no list of cells")
    language = _language(data)
    if language not in ("", "python", "ipython"):
        raise Unreadable(f"not a notebook of Python: its language is {language}")


def _is_cell(cell: Any) -> bool:
    if not isinstance(cell, dict):
        return False
    source = cell.get("source")
    is_lines = isinstance(source, list) and all(isinstance(line, str) for line in source)
    return isinstance(source, str) or is_lines


def _language(data: Mapping[str, Any]) -> str:
    """The language that the notebook says it is in; empty when it says nothing."""
    metadata = _table(data, "metadata")
    for table, key in (("language_info", "name"), ("kernelspec", "language")):
        said = _table(metadata, table).get(key)
        if isinstance(said, str) and said:
            return re.sub(r"\d*$", "", said.lower())
    return ""


def _is_python(cell: Mapping[str, Any]) -> bool:
    """Whether the editor's note on a single cell says no other language."""
    said = _table(_table(cell, "metadata"), "vscode").get("languageId", "python")
    return bool(said == "python")


def _table(of: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = of.get(key)
    return found if isinstance(found, Mapping) else {}


def _places(raw: str) -> Iterator[tuple[int, int]]:
    """Where the value of ``source`` is in each cell; the JSON is known to be right."""
    listed = dict(_members(raw, _skip(raw, 0)))["cells"][0]
    for start, _ in _elements(raw, listed):
        yield dict(_members(raw, start))["source"]


def _members(raw: str, at: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The keys of the object at an offset, with the places of their values."""
    at = _skip(raw, at + 1)
    while raw[at] != "}":
        key, at = _DECODER.raw_decode(raw, at)
        start = _skip(raw, _skip(raw, at) + 1)
        _, end = _DECODER.raw_decode(raw, start)
        yield key, (start, end)
        at = _skip(raw, end)
        if raw[at] == ",":
            at = _skip(raw, at + 1)


def _elements(raw: str, at: int) -> Iterator[tuple[int, int]]:
    """The places of the elements of the list at an offset."""
    at = _skip(raw, at + 1)
    while raw[at] != "]":
        _, end = _DECODER.raw_decode(raw, at)
        yield at, end
        at = _skip(raw, end)
        if raw[at] == ",":
            at = _skip(raw, at + 1)


def _skip(raw: str, at: int) -> int:
    match = _SPACE.match(raw, at)
    return match.end() if match is not None else at


def _gaps(value: str, strings: list[re.Match[str]]) -> tuple[str, str, str]:
    """What is before, between and behind the strings of a list."""
    if not strings:
        return "", ", ", ""
    before = value[1 : strings[0].start()]
    behind = value[strings[-1].end() : -1]
    if len(strings) == 1:
        return before, "," + (before or " "), behind
    return before, value[strings[0].end() : strings[1].start()], behind


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + lines[-1:] * bool(lines[-1])
