"""A report in the terms of the documents that its programs come from: cells of notebooks, for example."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from fsdp2lint.edits.changes import Span, apply
from fsdp2lint.source.source import Source, Unreadable

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic, Patch, Report

Change = tuple[Source, Span]
"""A replacement in a file, or in a part of a document."""


def placed(report: Report) -> Report:
    """The report with every place where a reader of the document finds it."""
    if not any(_from_document(d) for d in _every(report)):
        return report
    return report.but(
        found=[_placed(d) for d in report.found],
        suppressed=[(_placed(d), why) for d, why in report.suppressed],
        fixed=[_placed(d) for d in report.fixed],
        refused=[(_placed(d), why) for d, why in report.refused],
        known=[_placed(d) for d in report.known],
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


def _placed(diagnostic: Diagnostic) -> Diagnostic:
    return replace(
        diagnostic,
        place=diagnostic.place.in_document,
        calls=tuple(call.in_document for call in diagnostic.calls),
        because=tuple(
            replace(
                step,
                place=step.place.in_document,
                calls=tuple(call.in_document for call in step.calls),
            )
            for step in diagnostic.because
        ),
        patch=_patch(diagnostic.patch),
    )


def patched(patch: Patch) -> Iterator[Change]:
    """What a fix replaces, in the files and cells as their readers see them."""
    for source, spans in patch.items():
        if source.document is None:
            yield from ((source, span) for span in spans)
            continue
        with suppress(Unreadable):  # it cannot be made, which is said where fixes are made
            yield from changes(source, source.with_text(apply(source.text, spans)))


def _patch(patch: Patch) -> Patch:
    found: dict[Source, list[Span]] = {}
    for source, span in patched(patch):
        found.setdefault(source, []).append(span)
    return {source: tuple(spans) for source, spans in found.items()}


def changes(old: Source, new: Source) -> Iterator[Change]:
    """What differs between two texts of a file, line by line; in a document, part by part.

    Raises:
        Unreadable: a text does not fall into the parts of the document.
    """
    if old.document is None:
        pairs = [(old, new)]
    else:
        parts = zip(old.parts, new.parts, strict=True)
        pairs = [(one.source, other.source) for one, other in parts]
    for before, after in pairs:
        yield from ((before, span) for span in _spans(before.text, after.text))


def _spans(old: str, new: str) -> Iterator[Span]:
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, before))]
    head = _same(before, after)
    tail = _same(before[head:][::-1], after[head:][::-1])
    matcher = difflib.SequenceMatcher(
        None, before[head : len(before) - tail], after[head : len(after) - tail], autojunk=False
    )
    for kind, first, last, start, end in matcher.get_opcodes():
        if kind != "equal":
            text = "".join(after[head + start : head + end])
            yield Span(starts[head + first], starts[head + last], text)


def _same(one: list[str], other: list[str]) -> int:
    """How many lines two texts share at their beginning: comparing them costs less than aligning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
