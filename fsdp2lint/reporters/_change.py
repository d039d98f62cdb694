"""What a fix changes, as the lines that go and the lines that come."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp2lint.check.diagnostics import Place
from fsdp2lint.edits.changes import Span, apply
from fsdp2lint.reporters._frame import visible
from fsdp2lint.source.source import NEWLINE, Range

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic
    from fsdp2lint.reporters._paint import Line

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
