"""A finding as people read it: its message, its source frames, its fix."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from fsdp2lint.reporters._change import hunks
from fsdp2lint.reporters._frame import Mark, frame
from fsdp2lint.reporters._paint import Line, coded
from fsdp2lint.reporters._story import Point, story
from fsdp2lint.reporters._summary import NOUNS

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic


def told(found: Sequence[Diagnostic]) -> Iterator[Line]:
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
