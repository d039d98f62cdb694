"""A finding as people read it: its message, its source frames, its fix.

What a fix changes, as the lines that go and the lines that come.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from fsdp2lint.check.diagnostics import Place
from fsdp2lint.edits.changes import Span, apply
from fsdp2lint.reporters._paint import coded
from fsdp2lint.reporters._story import Point, story
from fsdp2lint.reporters._summary import NOUNS
from fsdp2lint.source.frames import Mark, frame, visible
from fsdp2lint.source.source import NEWLINE, Range
from fsdp2lint.system.paint import Line

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic
    from fsdp2lint.system.paint import Line


def rendered(found: Sequence[Diagnostic]) -> Iterator[Line]:
    """Every finding; where its rule is explained is said once a rule."""
    explained: set[str] = set()
    for diagnostic in found:
        yield from _finding(diagnostic, first=diagnostic.rule.code not in explained)
        explained.add(diagnostic.rule.code)


def _finding(diagnostic: Diagnostic, *, first: bool) -> Iterator[Line]:
    yield _header(diagnostic)
    points = story(diagnostic)
    shown = [p for p in points if p.place.source.text]
    gutter = max((len(str(p.place.range.end_line + 1)) for p in shown), default=1)
    for part in dict.fromkeys(p.place.part for p in points):
        here = [p for p in points if p.place.part == part]
        yield [(" " * gutter, ""), ("--> ", "gutter"), (_where(here[0]), _link(here[0]))]
        if here[0].place.source.text:
            marks = [_mark(p, diagnostic) for p in here]
            yield from frame(here[0].place.source.lines, marks, gutter)
    yield from _help(diagnostic, gutter)
    if first:
        yield [
            (" " * gutter, ""),
            ("= ", "gutter"),
            (f"explained by `fsdp2lint rule {diagnostic.rule.code}`", "dim"),
        ]
    yield []


def _header(diagnostic: Diagnostic) -> Line:
    severity = diagnostic.severity
    return [
        (f"{NOUNS[severity]}[{diagnostic.rule.code}]", coded(diagnostic.rule, severity)),
        (f" {diagnostic.rule.name}: {diagnostic.message}", "strong"),
    ]


def _where(point: Point) -> str:
    at = point.place.range
    return f"{point.place.part}:{at.line}:{at.column}"


def _link(point: Point) -> str:
    return "link:file://" + quote(os.path.abspath(point.place.path))


def _mark(point: Point, diagnostic: Diagnostic) -> Mark:
    role = diagnostic.severity if point.primary else "mark"
    return Mark(point.place.range, point.label, point.primary, role)


def _help(diagnostic: Diagnostic, gutter: int) -> Iterator[Line]:
    fix = diagnostic.fix
    if fix is not None:
        yield [(" " * gutter + "= ", "gutter"), ("help: ", "help"), (fix.title, "")]
        yield from hunks(diagnostic, gutter)
        if fix.safety != "safe":
            how = (
                "applied only with `--unsafe-fixes`"
                if fix.safety == "unsafe"
                else "shown only, never applied"
            )
            why = f": {fix.note}" if fix.note else ""
            yield [(" " * gutter + "= ", "gutter"), ("note: ", "note"), (f"{how}{why}", "")]
        elif fix.note:
            yield [(" " * gutter + "= ", "gutter"), ("note: ", "note"), (fix.note, "")]
    if diagnostic.note:
        yield [(" " * gutter + "= ", "gutter"), ("note: ", "note"), (diagnostic.note, "")]


CONTEXT = 1


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a diff: ``sign`` is ``-``, ``+`` or a space; ``number`` counts in the old text, 0 for added ones."""

    sign: str
    number: int
    text: str


def hunks(diagnostic: Diagnostic, gutter: int) -> Iterator[Line]:
    """The change that the fix of a finding makes, in the look of a source frame."""
    for source, spans in diagnostic.patch.items():
        if source is not diagnostic.place.source:
            where = Place(source, Range(1, 1, 1, 1)).part
            yield [(" " * gutter, ""), ("--> ", "gutter"), (where, "")]
        yield [(" " * gutter + " |", "gutter")]
        last = 0
        for row in rows(source.text, spans):
            if row.number and last and row.number > last + 1:
                yield [("..." + " " * max(gutter - 1, 0), "gutter")]
            last = row.number or last
            role = {"-": "remove", "+": "add", " ": ""}[row.sign]
            number = str(row.number) if row.number else ""
            yield [
                (f"{number:>{gutter}} ", "gutter"),
                ("| " if row.sign == " " else f"{row.sign} ", role or "gutter"),
                (visible(row.text), role),
            ]
        yield [(" " * gutter + " |", "gutter")]


def rows(text: str, spans: Sequence[Span]) -> Iterator[Row]:
    """The lines that the replacements change, each change with a line around it.

    Made from the replacements themselves: a statement that moves down is shown as moving down.
    """
    lines = NEWLINE.split(text)
    told = 0
    for first, last, new in _chunks(text, spans):
        old = lines[first:last]
        head = _same(old, new)
        tail = _same(old[head:][::-1], new[head:][::-1])
        start, end = first + head, last - tail
        yield from _around(lines, max(told, start - CONTEXT), start)
        for number in range(max(told, start), end):
            yield Row("-", number + 1, lines[number])
        for line in new[head : len(new) - tail]:
            yield Row("+", 0, line)
        told = min(end + CONTEXT, len(lines) - (not lines[-1]))
        following = [c for c in _chunks(text, spans) if c[0] > first]
        if following:
            told = min(told, following[0][0])
        yield from _around(lines, end, told)
        told = max(told, end)


def _chunks(text: str, spans: Sequence[Span]) -> list[tuple[int, int, list[str]]]:
    """The stretches of whole lines that change: first line, the one after the last, and the new lines."""
    starts = [0, *(m.end() for m in NEWLINE.finditer(text))]
    chunks: list[tuple[int, int, list[Span]]] = []
    for span in sorted(spans):
        first = bisect_right(starts, span.start) - 1
        last = bisect_right(starts, span.end)
        if chunks and first < chunks[-1][1]:
            first, _, joined = chunks.pop()
            chunks.append((first, last, [*joined, span]))
        else:
            chunks.append((first, last, [span]))
    ends = [*starts, len(text)]
    found = []
    for first, last, inside in chunks:
        begin, end = starts[first], ends[last]
        moved = [Span(s.start - begin, s.end - begin, s.text) for s in inside]
        new = apply(text[begin:end], moved)
        found.append((first, last, NEWLINE.split(new.removesuffix("\n").removesuffix("\r"))))
    return found


def _around(lines: Sequence[str], first: int, last: int) -> Iterator[Row]:
    for number in range(first, last):
        if lines[number].strip():
            yield Row(" ", number + 1, lines[number])


def _same(left: Sequence[str], right: Sequence[str]) -> int:
    """How many lines two texts share at their beginning."""
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
