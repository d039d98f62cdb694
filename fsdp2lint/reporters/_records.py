"""A finding as plain data, with ruff's keys where ruff has them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fsdp2lint.check.diagnostics import fingerprints, shown
from fsdp2lint.source.source import NEWLINE

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic, Patch, Place, Report
    from fsdp2lint.source.source import Range, Source

Record = dict[str, Any]

APPLICABILITY = {"safe": "safe", "unsafe": "unsafe", "shown": "display"}
"""ruff's words for how far a fix can be trusted."""


def records(report: Report) -> Iterator[Record]:
    """Every finding of a report, in its order."""
    for diagnostic, mark in zip(report.found, fingerprints(report.found), strict=True):
        yield _record(diagnostic, mark)


def _record(diagnostic: Diagnostic, mark: str) -> Record:
    at = diagnostic.place.range
    return {
        "code": diagnostic.rule.code,
        "name": diagnostic.rule.name,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "filename": diagnostic.place.path,
        "location": location(at.line, at.column),
        "end_location": location(at.end_line, at.end_column),
        "cell": diagnostic.place.source.cell,
        "url": diagnostic.rule.link,
        "fix": _fix(diagnostic),
        "note": diagnostic.note or None,
        "related": [
            {**_spot(step.place), "message": step.label, "calls": [_spot(c) for c in step.calls]}
            for step in diagnostic.because
        ],
        "fingerprint": mark,
    }


def location(line: int, column: int) -> Record:
    """A place, 1-based, columns in code points."""
    return {"row": line, "column": column}


def _spot(place: Place) -> Record:
    at = place.range
    return {
        "filename": place.path,
        "location": location(at.line, at.column),
        "end_location": location(at.end_line, at.end_column),
        "cell": place.source.cell,
    }


def _fix(diagnostic: Diagnostic) -> Record | None:
    fix = diagnostic.fix
    if fix is None:
        return None
    edits = [
        {
            "filename": shown(source.path),
            "content": text,
            "location": location(at.line, at.column),
            "end_location": location(at.end_line, at.end_column),
            "cell": source.cell,
        }
        for source, at, text in replacements(diagnostic.patch)
    ]
    return {
        "applicability": APPLICABILITY[fix.safety],
        "message": fix.title,
        "note": fix.note or None,
        "edits": edits,
    }


def replacements(patch: Patch) -> Iterator[tuple[Source, Range, str]]:
    """What a fix replaces: the source, a span of it, and the text that comes there."""
    from fsdp2lint.source.source import Range

    for source, spans in patch.items():
        starts = [0, *(match.end() for match in NEWLINE.finditer(source.text))]
        for span in spans:
            at = Range(*_place(starts, span.start), *_place(starts, span.end))
            yield source, at, span.text


def _place(starts: list[int], offset: int) -> tuple[int, int]:
    """The line and the column of an offset, where ``starts`` are the offsets of the lines."""
    line = bisect_right(starts, offset)
    return line, offset - starts[line - 1] + 1
