"""A report in the terms of the documents that its programs come from: cells of notebooks, for example."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp2lint.edits.changes import Span
from fsdp2lint.source import NEWLINE, Range

if TYPE_CHECKING:
    from fsdp2lint.diagnostics import Diagnostic, Patch, Report
    from fsdp2lint.source import Document, Source


def told(report: Report) -> Report:
    """The report with every place where a reader of the document finds it."""
    if not any(_from_document(d) for d in _every(report)):
        return report
    return report.but(
        found=[_told(d) for d in report.found],
        suppressed=[(_told(d), why) for d, why in report.suppressed],
        fixed=[_told(d) for d in report.fixed],
        refused=[(_told(d), why) for d, why in report.refused],
        known=[_told(d) for d in report.known],
    )


def _every(report: Report) -> Iterator[Diagnostic]:
    for pairs in (report.suppressed, report.refused):
        yield from (diagnostic for diagnostic, _ in pairs)
    for listed in (report.found, report.fixed, report.known):
        yield from listed


def _from_document(diagnostic: Diagnostic) -> bool:
    places = [diagnostic.place, *(step.place for step in diagnostic.because)]
    places += [*diagnostic.calls, *(c for step in diagnostic.because for c in step.calls)]
    sources = (*(place.source for place in places), *diagnostic.patch)
    return any(source.document is not None for source in sources)


def _told(diagnostic: Diagnostic) -> Diagnostic:
    return replace(
        diagnostic,
        place=diagnostic.place.told,
        calls=tuple(call.told for call in diagnostic.calls),
        because=tuple(
            replace(step, place=step.place.told, calls=tuple(call.told for call in step.calls))
            for step in diagnostic.because
        ),
        patch=_patch(diagnostic.patch),
    )


def patched(patch: Patch) -> Iterator[tuple[Source, Span]]:
    """What a fix replaces, in the files and cells as their readers see them."""
    for source, spans in patch.items():
        if source.document is None:
            yield from ((source, span) for span in spans)
        else:
            yield from _in_parts(source, source.document, spans)


def _patch(patch: Patch) -> Patch:
    found: dict[Source, list[Span]] = {}
    for source, span in patched(patch):
        found.setdefault(source, []).append(span)
    return {source: tuple(spans) for source, spans in found.items()}


def _in_parts(
    source: Source, document: Document, spans: Iterable[Span]
) -> Iterator[tuple[Source, Span]]:
    starts = _starts(source.text)
    for span in spans:
        at = Range(*_place(starts, span.start), *_place(starts, span.end))
        part, inside = document.place(source, at)
        into = _starts(part.text)
        start = into[inside.line - 1] + inside.column - 1
        end = into[inside.end_line - 1] + inside.end_column - 1
        text = document.shown(span.text)
        if part.text[start:end] != text:
            yield part, Span(start, end, text)


def _starts(text: str) -> list[int]:
    return [0, *(match.end() for match in NEWLINE.finditer(text))]


def _place(starts: list[int], offset: int) -> tuple[int, int]:
    line = bisect_right(starts, offset)
    return line, offset - starts[line - 1] + 1
