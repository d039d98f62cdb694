"""Places as the client counts them: from zero, in the units of the encoding that was agreed on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from lsprotocol import types

from fsdp2lint.edits.changes import Span
from fsdp2lint.source.source import NEWLINE, Range

Units = Callable[[str], int]
"""How many units a text has: code points, UTF-16 code units or bytes."""


class Ruler:
    r"""The places of one text. Lines end as the protocol says: at ``\n``, ``\r\n`` and ``\r``."""

    def __init__(self, text: str, units: Units) -> None:
        self.lines = NEWLINE.split(text)
        self._starts = [0, *(match.end() for match in NEWLINE.finditer(text))]
        self._units = units

    def range(self, at: Range) -> types.Range:
        """A span, from lines and columns."""
        return types.Range(
            self._position(at.line, at.column), self._position(at.end_line, at.end_column)
        )

    def span(self, span: Span) -> types.Range:
        """A span, from offsets."""
        return types.Range(self._at(span.start), self._at(span.end))

    def place(self, position: types.Position) -> tuple[int, int]:
        """Line and column, from 1 and in code points."""
        number = min(position.line, len(self.lines) - 1)
        line = self.lines[number]
        if position.line > number:
            return number + 1, len(line) + 1
        return number + 1, self._column(line, position.character) + 1

    def _position(self, line: int, column: int) -> types.Position:
        number = min(line, len(self.lines)) - 1
        return types.Position(number, self._units(self.lines[number][: column - 1]))

    def _at(self, offset: int) -> types.Position:
        line = bisect_right(self._starts, offset)
        return self._position(line, offset - self._starts[line - 1] + 1)

    def _column(self, line: str, units: int) -> int:
        """The code points before a unit; a place inside a character is the one before it."""
        low, high = 0, len(line)
        while low < high:
            middle = (low + high + 1) // 2
            if self._units(line[:middle]) <= units:
                low = middle
            else:
                high = middle - 1
        return low
