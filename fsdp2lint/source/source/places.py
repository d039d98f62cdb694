"""Where something is in a text, and why a text cannot be read."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_NESTING = 200
"""Bracket depth beyond which libcst's recursive parser is not trusted with a file."""

NEWLINE = re.compile(r"\r\n|\r|\n")
"""What ends a line of Python; ``str.splitlines`` splits at eight more characters."""


class Unreadable(Exception):
    """The file cannot be analysed; the message says why, ``line`` and ``column`` where (1-based)."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """A span of text; lines and columns are 1-based, columns count code points, the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int
