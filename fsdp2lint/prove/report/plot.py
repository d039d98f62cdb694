"""A plot of two curves as SVG: axes with round numbers, one line broad and one thin, so that both show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from fsdp2lint.prove.report.data import Curve
from fsdp2lint.prove.report.markup import Markup, tag

HEIGHT = 260
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 10, 34
TICKS = 5
FLAT = 0.01
"""The least range of the axis, relative to its largest number."""
MOST = 600
"""Points of a line; of more, the lowest and the highest of each stretch are drawn."""
DOTS = 60
"""Up to so many steps each has a dot that tells its values."""

Numbers = Sequence[float | None]
Scale = Callable[[float], float]


def plot(curve: Curve, width: int) -> Markup:
    """The curves of both runs over the steps, ``width`` pixels wide where there is room."""
    steps = max(len(curve.before), len(curve.after), 1)
    values = [v for v in (*curve.before, *curve.after) if v is not None and math.isfinite(v)]
    ticks = round_ticks(min(values, default=0.0), max(values, default=1.0))
    x = _scale(1, max(steps, 2), LEFT, width - RIGHT)
    y = _scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    return tag(
        "svg",
        _grid(ticks, y, width),
        _steps(steps, x, width),
        _line(curve.before, x, y, "before"),
        _line(curve.after, x, y, "after"),
        _dots(curve, x, y) if steps <= DOTS else (),
        viewBox=f"0 0 {width} {HEIGHT}",
        role="img",
        aria_label=f"{curve.title} by step",
    )


def round_ticks(low: float, high: float) -> list[float]:
    """Some round numbers from below ``low`` to above ``high``."""
    least = FLAT * max(abs(low), abs(high)) or 1.0
    if high - low < least:  # the last bits of equal numbers are no curve
        middle = (low + high) / 2
        low, high = middle - least / 2, middle + least / 2
    rough = (high - low) / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def thinned(values: Numbers) -> Iterator[tuple[int, float | None]]:
    """Steps, counted from 1, with their values: all, or the extremes of each stretch."""
    stretch = max(1, -(-len(values) * 2 // MOST))
    for start in range(0, len(values), stretch):
        part = [(start + n + 1, v) for n, v in enumerate(values[start : start + stretch])]
        known = [(n, v) for n, v in part if v is not None and math.isfinite(v)]
        if stretch == 1 or not known:
            yield (part[0][0], known[0][1] if known else None)
            continue
        extremes = {min(known, key=_value), max(known, key=_value)}
        yield from sorted(extremes)


def _value(point: tuple[int, float]) -> float:
    return point[1]


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def _grid(ticks: Sequence[float], y: Scale, width: int) -> Iterator[Markup]:
    for number in ticks:
        at = y(number)
        yield tag("line", x1=LEFT, x2=width - RIGHT, y1=at, y2=at, class_="grid")
        text = format(0.0 if abs(number) < 1e-300 else number, ".4g")
        yield tag("text", text, x=LEFT - 8, y=at + 4, text_anchor="end")


def _steps(steps: int, x: Scale, width: int) -> Iterator[Markup]:
    every = max(1, round(round_ticks(0, max(steps - 1, 1))[1])) if steps > 10 else 1
    shown = [step for step in range(1, steps + 1) if step == 1 or step % every == 0]
    for step in shown:
        yield tag("text", str(step), x=x(step), y=HEIGHT - 14, text_anchor="middle")
    yield tag("text", "optimizer step", x=width - RIGHT, y=HEIGHT - 1, text_anchor="end")


def _line(values: Numbers, x: Scale, y: Scale, name: str) -> Iterator[Markup]:
    """The line, broken where a value is missing."""
    path, pen = [], "M"
    for step, value in thinned(values):
        if value is None:
            pen = "M"
            continue
        dot = "h0" if pen == "M" else ""  # a value between two missing ones is a dot
        path.append(f"{pen}{x(step):.1f},{y(value):.1f}{dot}")
        pen = "L"
    if path:
        yield tag("path", d=" ".join(path), class_=name)


def _dots(curve: Curve, x: Scale, y: Scale) -> Iterator[Markup]:
    for step in range(1, max(len(curve.before), len(curve.after)) + 1):
        told = []
        at = None
        for name, values in (("before", curve.before), ("after", curve.after)):
            value = values[step - 1] if step <= len(values) else None
            told.append(f"{name} {'-' if value is None else format(value, '.9g')}")
            at = value if at is None else at
        if at is None or not math.isfinite(at):
            continue
        title = tag("title", f"step {step}: {', '.join(told)}")
        # an element with content: the title is what a pointer over the dot shows
        yield tag("g", title, tag("circle", cx=x(step), cy=y(at), r=3.5), class_="dot")
