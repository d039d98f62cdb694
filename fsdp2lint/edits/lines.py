"""Indenting code that is text: lines inside strings keep their place."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Callable

from fsdp2lint.edits.layout import NEWLINE


def indented(code: str, indent: str, newline: str) -> str:
    """``code`` with ``indent`` before each line that holds something, and the file's ``newline``."""
    inside = _lines_inside_strings(code)
    lines = NEWLINE.split(code)
    return newline.join(
        line if number in inside or not line.strip() else indent + line
        for number, line in enumerate(lines, 1)
    )


def shifted(code: str, base: str, unit: str) -> str:
    """``code``, text of the file indented by ``base``, one step deeper; its newlines stay as they are.

    The step comes behind ``base``: a block may mix tabs and spaces.
    """

    def deeper(line: str) -> str:
        return base + unit + line.removeprefix(base) if line.startswith(base) else unit + line

    return _with_each_line(code, deeper)


def lifted(code: str, base: str, inner: str) -> str:
    """``code``, text of the file indented by ``inner``, indented by ``base``; its newlines stay as they are.

    Lines that are indented less (comments, lines inside brackets) and lines inside strings stay.
    """
    return _with_each_line(
        code, lambda line: base + line[len(inner) :] if line.startswith(inner) else line
    )


def _with_each_line(code: str, moved: Callable[[str], str]) -> str:
    """``code`` with its lines moved, but for empty ones and those inside strings."""
    inside = _lines_inside_strings(code)
    pieces: list[str] = []
    at, number = 0, 1
    while at < len(code):
        found = NEWLINE.search(code, at)
        end = found.end() if found else len(code)
        line = code[at:end]
        pieces.append(moved(line) if number not in inside and line.strip() else line)
        at, number = end, number + 1
    return "".join(pieces)


def _lines_inside_strings(code: str) -> set[int]:
    """The lines, counted from 1, that begin inside a string."""
    if '"""' not in code and "'''" not in code and "\\" not in code:
        return set()
    found: set[int] = set()
    starts: list[int] = []
    text = io.StringIO(code, newline=None)
    try:
        for token in tokenize.generate_tokens(text.readline):
            name = tokenize.tok_name[token.type]
            if name == "STRING":
                found.update(range(token.start[0] + 1, token.end[0] + 1))
            elif name.endswith("STRING_START"):
                starts.append(token.start[0])
            elif name.endswith("STRING_END"):
                found.update(range(starts.pop() + 1, token.end[0] + 1))
    except (tokenize.TokenError, SyntaxError):
        pass  # a fragment that ends early: what was seen so far is right
    return found
