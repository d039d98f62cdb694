"""Source frames: some lines of a file with spans marked below them.

       |
    17 |     optimizer = AdamW(model.parameters())
       |                 ^^^^^^^^^^^^^^^^^^^^^^^^^ the message points here
    ...
    24 |     shard(model)
       |     ------------ and this is what follows

A span of several lines has a bar at its left from its first line to its last.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fsdp2lint.source.source import Range
from fsdp2lint.system.paint import Line

CONTEXT = 1
"""How many lines around a marked line are shown."""

TALL = 8
"""Spans of more lines are shown without their middle."""

WIDE = 160
"""Longer lines are cut around what is marked in them."""

TAB = 4


@dataclass(frozen=True, slots=True)
class Mark:
    """A span to show: ``primary`` ones are what the message is about."""

    range: Range
    label: str
    primary: bool
    role: str = "mark"


def frame(lines: Sequence[str], marks: Sequence[Mark], gutter: int) -> Iterator[Line]:
    """The lines of a source that ``marks`` touch, with the marks below them.

    ``gutter`` is the width of the line numbers.
    """
    ordered = sorted(marks, key=lambda m: (m.range, not m.primary))
    tall = _in_lanes([m for m in ordered if m.range.end_line > m.range.line])
    lanes = max(tall.values(), default=-1) + 1
    yield _row("", gutter, [])
    previous = 0
    for number in _shown(ordered, lines):
        if previous and number > previous + 1:
            yield [("..." + " " * max(gutter - 1, 0), "gutter")]
        previous = number
        yield from _one_line(number, lines[number - 1], ordered, tall, lanes, gutter)
    yield _row("", gutter, [])


def _one_line(
    number: int,
    text: str,
    marks: Sequence[Mark],
    tall: dict[Mark, int],
    lanes: int,
    gutter: int,
) -> Iterator[Line]:
    """A line of source, and below it what ends or lies on it."""
    here = [m for m in marks if m.range.line == number and m not in tall]
    shown, columns = _visible(text, here[0].range.column if here else 1)
    yield _row(str(number), gutter, [*_bars(number, tall, lanes, start=True), (shown, "")])
    bars = _bars(number, tall, lanes, start=False)
    for mark in here:
        yield _row("", gutter, [*bars, *_underline(mark, columns)])
    for mark, lane in tall.items():
        if mark.range.end_line == number:
            yield _row("", gutter, _closing(mark, lane, lanes, number, tall, columns))


def _underline(mark: Mark, columns: Sequence[int]) -> Line:
    start = columns[min(mark.range.column, len(columns)) - 1]
    end = columns[min(mark.range.end_column, len(columns)) - 1]
    sign = "^" if mark.primary else "-"
    return [(" " * start, ""), (sign * max(end - start, 1), mark.role), *_label(mark)]


def _label(mark: Mark) -> Line:
    return [(" " + mark.label, mark.role)] if mark.label else []


def _in_lanes(tall: Iterable[Mark]) -> dict[Mark, int]:
    """A lane for each span of several lines, so that overlapping bars are side by side."""
    lanes: dict[Mark, int] = {}
    for mark in tall:
        taken = {lane for other, lane in lanes.items() if other.range.end_line >= mark.range.line}
        lanes[mark] = next(n for n in range(len(lanes) + 1) if n not in taken)
    return lanes


def _bars(number: int, tall: dict[Mark, int], lanes: int, *, start: bool) -> Line:
    """The bars of the spans that this line is a part of; ``/`` where one begins."""
    bars: Line = [("  ", "")] * lanes
    for mark, lane in tall.items():
        if start and number == mark.range.line:
            bars[lane] = ("/ ", mark.role)
        elif mark.range.line < number <= mark.range.end_line or (
            number == mark.range.line and not start
        ):
            bars[lane] = ("| ", mark.role)
    return bars


def _closing(
    mark: Mark, lane: int, lanes: int, number: int, tall: dict[Mark, int], columns: Sequence[int]
) -> Line:
    """``|_____^ label`` below the last line of a span."""
    others = {m: n for m, n in tall.items() if m is not mark and m.range.end_line > number}
    bars = _bars(number, others, lanes, start=False)
    end = columns[min(mark.range.end_column, len(columns)) - 1]
    reach = 2 * (lanes - lane - 1) + max(end - 1, 0) + 1
    sign = "^" if mark.primary else "-"
    return [*bars[:lane], ("|" + "_" * reach + sign, mark.role), *_label(mark)]


def _shown(marks: Sequence[Mark], lines: Sequence[str]) -> list[int]:
    """The numbers of the lines to show: marked ones, what is around them, and no gap of one line."""
    wanted: set[int] = set()
    around: set[int] = set()
    for mark in marks:
        first, end = mark.range.line, max(mark.range.end_line, mark.range.line)
        span = range(first, end + 1)
        wanted.update(span if len(span) <= TALL else [*span[: TALL - 3], *span[-2:]])
        around.update(range(first - CONTEXT, first), range(end + 1, end + 1 + CONTEXT))
    wanted.update(n for n in around if 1 <= n <= len(lines) and lines[n - 1].strip())
    numbers = {n for n in wanted if 1 <= n <= len(lines)}
    return sorted(numbers | {n + 1 for n in numbers if n + 2 in numbers})


def visible(text: str) -> str:
    """A line as a terminal can show it: no tabs, no control characters, not too long."""
    return _visible(text, 1)[0]


def _row(number: str, gutter: int, content: Line) -> Line:
    return [(f"{number:>{gutter}} | ", "gutter"), *content]


def _visible(text: str, around: int) -> tuple[str, list[int]]:
    """A line as a terminal can show it, and at which cell each of its characters begins (and the end)."""
    shown: list[str] = []
    columns = [0]
    for character in text:
        piece = _cell(character, columns[-1])
        shown.append(piece)
        columns.append(columns[-1] + _width(piece))
    if columns[-1] <= WIDE:
        return "".join(shown).rstrip(), columns
    return _cut(shown, columns, around)


def _cut(shown: list[str], columns: list[int], around: int) -> tuple[str, list[int]]:
    first = max(0, around - 1 - WIDE // 2)
    last = min(len(shown), first + WIDE)
    shift = columns[first] - (3 if first else 0)
    cells = [min(max(c - shift, 0), columns[last] - shift) for c in columns]
    text = ("..." if first else "") + "".join(shown[first:last])
    return text + ("..." if last < len(shown) else ""), cells


def _cell(character: str, at: int) -> str:
    if character == "\t":
        return " " * (TAB - at % TAB)
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _width(piece: str) -> int:
    if piece.isascii():
        return len(piece)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in piece
    )
