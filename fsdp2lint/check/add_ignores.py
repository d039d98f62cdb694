"""Writing suppression comments: the text of a file in which its present findings are silenced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fsdp2lint.catalogue.toolrules import ALWAYS_ON
from fsdp2lint.check.suppress import logical_lines
from fsdp2lint.source.source import NEWLINE, Source

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic

_IGNORE = re.compile(r"#\s*fsdp2lint:\s*ignore\[(?P<codes>[^\]]*)\]")


def silenced(source: Source, found: Iterable[Diagnostic], reason: str = "") -> str:
    """The text of a source with a comment on each statement in which a finding is.

    Codes go into a comment that is there already. What was not analysed cannot be silenced.
    """
    by_line: dict[int, list[str]] = {}
    statements = logical_lines(source.text)
    for diagnostic in found:
        line = _last_line(diagnostic.place.range.line, statements)
        if diagnostic.rule not in ALWAYS_ON and line:
            codes = by_line.setdefault(line, [])
            if diagnostic.rule.code not in codes:
                codes.append(diagnostic.rule.code)
    pieces, at = [], 0
    for number, match in enumerate(NEWLINE.finditer(source.text + "\n"), 1):
        text = source.text[at : match.start()]
        pieces.append(_commented(text, by_line[number], reason) if number in by_line else text)
        pieces.append(source.text[match.start() : match.end()])
        at = match.end()
    return "".join(pieces)


def _last_line(line: int, statements: Sequence[tuple[int, int]]) -> int:
    """The line on which the statement around a line ends; 0 when it is in none."""
    return next((last for first, last in statements if first <= line <= last), 0)


def _commented(line: str, codes: Sequence[str], reason: str) -> str:
    match = _IGNORE.search(line)
    if match is not None:
        there = [code.strip() for code in match["codes"].split(",") if code.strip()]
        every = ", ".join(dict.fromkeys([*there, *codes]))
        return line[: match.start("codes")] + every + line[match.end("codes") :]
    why = f" -- {' '.join(reason.split())}" if reason.strip() else ""
    return f"{line.rstrip()}  # fsdp2lint: ignore[{', '.join(codes)}]{why}"
