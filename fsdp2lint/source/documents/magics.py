r"""IPython's own syntax inside a cell, hidden from the parser and given back afterwards.

    %matplotlib inline          _#:magic 0:
    files = !ls data            files = _#:magic 1:
    !torchrun --nproc 2 \       (_
        train.py                )#:magic 2:

What is instead is an expression of unknown value on as many lines; the number in the comment finds
the original again, wherever an edit has moved it.
https://ipython.readthedocs.io/en/stable/interactive/reference.html#ipython-reference
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

PYTHON_CELLS = frozenset({"capture", "debug", "prun", "pyspy", "time", "timeit"})
"""Cell magics whose cell is Python that runs among the other cells."""

_HIDDEN = re.compile(r"(?:_|\(_\s*\))#:magic (\d+):")
_ESCAPE = re.compile(r"[ \t]*(?P<magic>[%!?/,;].*)")
_ASSIGNED = re.compile(r"[ \t]*[\w.,\[\]'\"* ()]*[\w\])][ \t]*=[ \t]*(?P<magic>[%!].*)")
_INSTALL = re.compile(r"[ \t]*(?P<magic>(?:conda|mamba|micromamba|pip|uv)[ \t]+(?:un)?install\b.*)")
_HELP = re.compile(r"[ \t]*(?P<magic>%{0,2}[\w.*]+(?:\[[^#]*\])?\?{1,2})[ \t]*(?:#.*)?")
_CELL = re.compile(r"\s*%%(?P<name>\w*)")
_TOKEN = re.compile(
    r"(?P<comment>\#.*)|(?P<long>'''|\"\"\")|(?P<short>'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\")"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<on>\\$)"
)
_LONG_END = {quotes: re.compile(rf"(?:\\.|[^\\])*?{quotes}") for quotes in ("'''", '"""')}


def is_python(cell: str) -> bool:
    """Whether a cell is Python at all: ``%%bash`` and ``%%writefile`` make it something else."""
    match = _CELL.match(cell)
    return match is None or match["name"] in PYTHON_CELLS


def hidden(cell: str, originals: list[str]) -> str:
    """The cell with other text in place of its magics, which are added to ``originals``."""
    lines = cell.split("\n")
    for first, last, column, end in list(_magics(lines)):
        originals.append("\n".join([lines[first][column:end], *lines[first + 1 : last + 1]]))
        rest = lines[first][end:] if first == last else ""
        mark = f"#:magic {len(originals) - 1}:"
        before = lines[first][:column]
        if first == last:
            lines[first] = f"{before}_{mark}{rest}"
        else:
            lines[first] = f"{before}(_"
            lines[first + 1 : last] = [""] * (last - first - 1)
            lines[last] = f"){mark}"
    return "\n".join(lines)


def shown(text: str, originals: Sequence[str]) -> str:
    """The text with the magics where they were hidden."""
    return _HIDDEN.sub(lambda match: originals[int(match[1])], text)


def _magics(lines: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    """Where magics are: first line, last line, and the columns on the first one."""
    scanner = _Scanner()
    number = 0
    while number < len(lines):
        line = lines[number]
        match = _magic(line) if scanner.between_statements else None
        if match is None:
            scanner.read(line)
            number += 1
            continue
        last = number
        while lines[last].endswith("\\") and last + 1 < len(lines):
            last += 1
        yield number, last, *match
        number = last + 1


def _magic(line: str) -> tuple[int, int] | None:
    """The columns of the magic on a line at which a statement begins."""
    for pattern in (_ESCAPE, _HELP, _ASSIGNED, _INSTALL):
        match = pattern.fullmatch(line)
        if match is not None:
            return match.span("magic")
    return None


class _Scanner:
    """Knows, line by line, whether a statement may begin: not in brackets, strings or continued lines."""

    def __init__(self) -> None:
        self.depth = 0
        self.quotes = ""
        self.going_on = False

    @property
    def between_statements(self) -> bool:
        """Whether the next line begins a statement."""
        return not (self.depth or self.quotes or self.going_on)

    def read(self, line: str) -> None:
        """Go over one line."""
        self.going_on = False
        at = 0
        while at < len(line):
            if self.quotes:
                end = _LONG_END[self.quotes].match(line, at)
                if end is None:
                    return
                self.quotes, at = "", end.end()
                continue
            match = _TOKEN.search(line, at)
            if match is None:
                return
            at = match.end()
            self.quotes = match["long"] or ""
            self.depth = max(0, self.depth + bool(match["open"]) - bool(match["close"]))
            self.going_on = match["on"] is not None
