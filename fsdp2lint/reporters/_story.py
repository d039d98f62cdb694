"""The points of a finding in the order in which the run reaches them, with the calls that lead there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic, Place


@dataclass(frozen=True, slots=True)
class Point:
    """A place to show, and what is said there."""

    place: Place
    label: str
    primary: bool = False


def story(diagnostic: Diagnostic) -> list[Point]:
    """All places of a finding, its own first.

    Where the text does not show the order of the run by itself (another file, or a later line that
    runs earlier) the points are numbered.
    """
    chains = [(diagnostic.calls, diagnostic.place, "", diagnostic.order)]
    chains += [(s.calls, s.place, s.label, s.order) for s in diagnostic.because]
    common = _common([calls for calls, _, _, _ in chains])
    numbers = _numbers(diagnostic)
    points: dict[object, Point] = {}
    for index, (calls, place, label, _) in enumerate(chains):
        number = numbers[index]
        for call in calls[common:]:
            _keep(points, Point(call, _said(number, "in this call")))
        _keep(points, Point(place, _said(number, label), primary=index == 0))
    first = _keep(points, Point(diagnostic.place, _said(numbers[0], ""), primary=True))
    return [first, *(p for p in points.values() if p is not first)]


def _keep(points: dict[object, Point], point: Point) -> Point:
    """One point a span; what several say of it is said together."""
    key = point.place.spot
    known = points.get(key)
    if known is not None:
        labels = dict.fromkeys(label for label in (known.label, point.label) if label)
        point = Point(point.place, "; ".join(labels), known.primary or point.primary)
    points[key] = point
    return point


def _said(number: int, label: str) -> str:
    return f"{f'({number}) ' if number else ''}{label}".strip()


def _common(chains: Sequence[tuple[Place, ...]]) -> int:
    """How many calls all chains share at their beginning."""
    shared = 0
    for calls in zip(*chains, strict=False):
        if len({c.spot for c in calls}) > 1:
            break
        shared += 1
    return shared


def _numbers(diagnostic: Diagnostic) -> list[int]:
    """The place of each point in the order of the run, or zeros where the text shows it."""
    points = [(diagnostic.order, diagnostic.place)]
    points += [(step.order, step.place) for step in diagnostic.because]
    timed = [(order, place) for order, place in points if order is not None]
    ranks = {order: n for n, order in enumerate(sorted({o for o, _ in timed}), 1)}
    in_time = [place for _, place in sorted(timed, key=lambda pair: pair[0])]
    as_written = sorted(in_time, key=lambda p: p.spot)
    one_file = len({p.source.path for p in in_time}) == 1
    if len(ranks) < 2 or (one_file and in_time == as_written):
        return [0] * len(points)
    return [0 if order is None else ranks[order] for order, _ in points]


def steps_of_the_run(diagnostic: Diagnostic) -> Iterator[tuple[Place, str]]:
    """Calls and points as the run passes them: what a debugger that steps along would show."""
    points = [(diagnostic.order, diagnostic.calls, diagnostic.place, diagnostic.message)]
    points += [(s.order, s.calls, s.place, s.label) for s in diagnostic.because]
    common = _common([calls for _, calls, _, _ in points])
    for _, calls, place, label in sorted(points, key=lambda p: -1 if p[0] is None else p[0]):
        for call in calls[common:]:
            yield call, "in this call"
        yield place, label
