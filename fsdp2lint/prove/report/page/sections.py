"""The parts of the page below its head; each is empty where there is nothing to show.

A plot of two curves as SVG: axes with round numbers, one line broad and one thin, so that both show.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from fsdp2lint.plan.compare import compare_plans
from fsdp2lint.plan.data import Plan
from fsdp2lint.plan.words import alike, group_lines, rows, unit_lines
from fsdp2lint.prove.report.changes import anchor, files
from fsdp2lint.prove.report.data import Curve, Entry, Outcome
from fsdp2lint.prove.report.markup import Markup, join, prose, tag
from fsdp2lint.rehearse.results import Compared, Difference

WIDE, NARROW = 1160, 560
"""The widths of plots, in pixels."""
_TOLD = 1000
"""Steps whose numbers are listed below a plot."""


def curves(shown: Sequence[Curve]) -> Iterator[Markup]:
    """A plot for each; the first over the whole width."""
    figures = [_figure(curve, wide=not number) for number, curve in enumerate(shown)]
    if figures:
        yield tag("div", figures, class_="plots")


def _figure(curve: Curve, *, wide: bool) -> Markup:
    keys = [tag("span", "before", class_="key before")]
    if curve.after:
        keys.append(tag("span", "after", class_="key after"))
    plots = [plot(curve, NARROW)]
    if wide:  # a small screen gets the narrow one, whose text it can show
        plots.insert(0, plot(curve, WIDE))
    caption = tag(
        "figcaption", tag("b", curve.title), keys, tag("span", _apart(curve), class_="dim")
    )
    return tag(
        "figure",
        caption,
        plots,
        _numbers(curve),
        class_="wide" if wide else None,
    )


def _apart(curve: Curve) -> str:
    """Where the two differ first, and by how much at most."""
    if not curve.after:
        return ""
    if len(curve.before) != len(curve.after):
        return f"{len(curve.before)} steps before, {len(curve.after)} after"
    pairs = list(enumerate(zip(curve.before, curve.after, strict=True), 1))
    unequal = [step for step, (was, now) in pairs if was != now]
    if not unequal:
        return "equal in every step"
    largest = max(abs(was - now) for _, (was, now) in pairs if was is not None and now is not None)
    return f"first unequal in step {unequal[0]}, at most {largest:.3g} apart"


def _numbers(curve: Curve) -> Markup:
    head = ("step", "before", "after") if curve.after else ("step", "before")
    steps = range(1, min(max(len(curve.before), len(curve.after)), _TOLD) + 1)
    body = (
        [str(step), *(_at(side, step) for side in (curve.before, curve.after)[: len(head) - 1])]
        for step in steps
    )
    table = _table(head, body, numbers=range(len(head)))
    return tag("details", tag("summary", "numbers"), table)


def _at(values: Sequence[float | None], step: int) -> str:
    value = values[step - 1] if step <= len(values) else None
    return "-" if value is None or not math.isfinite(value) else format(value, ".9g")


def comparison(compared: Sequence[Compared]) -> Iterator[Markup]:
    """One row for each kind of thing, its differences below it."""
    if not compared:
        return
    head = ("what", "verdict", "compared", "bit for bit equal", "largest relative difference")
    yield _table(head, map(_judged, compared), numbers=(2, 3, 4))


def _what(one: Compared) -> Markup:
    told = [*map(_difference, one.differences), *map(_item, one.notes)]
    return join(tag("code", one.what), tag("ul", told) if told else "")


def _item(text: str) -> Markup:
    return tag("li", prose(text))


def _difference(found: Difference) -> Markup:
    more = f" and {found.more} more" if found.more else ""
    if not found.causes:
        return _item(found.message + more)
    why = tag("ul", map(_item, found.causes))
    return tag("li", join(prose(found.message + more), why))


def _judged(one: Compared) -> list[str]:
    verdict = ("equal", "good") if one.equal else ("different", "bad")
    if one.unproven and one.equal:
        verdict = ("proves nothing", "bad")
    elif one.equal and not one.count:
        verdict = ("none to compare", "dim")
    apart = f"{one.relative:.3g}" if one.relative else "-"
    badge = tag("b", verdict[0], class_=verdict[1])
    return [_what(one), badge, str(one.count), str(one.identical), apart]


def plans(shown: Sequence[Plan]) -> Iterator[Markup]:
    """The sums side by side, what differs, and the units and parameter groups of each."""
    if not shown:
        return
    times = ("before", "after")[: len(shown)] if len(shown) > 1 else ("bytes",)
    yield tag(
        "p", f"{shown[0].world} ranks, planned in one process; bytes on rank 0.", class_="dim"
    )
    body = ([_label(label), *cells] for label, cells in rows(shown))
    yield _table(("on each rank", *times), body, numbers=range(1, len(times) + 1))
    if len(shown) > 1:
        yield from _apart_plans(shown[0], shown[1])
    yield tag("div", (_lists(*each) for each in zip(shown, times, strict=True)), class_="pair")


def _apart_plans(before: Plan, after: Plan) -> Iterator[Markup]:
    changes = alike(compare_plans(before, after))
    if not any(change.essential for change in changes):
        yield tag(
            "p",
            tag(
                "b",
                "The same parameters form the same groups and are trained alike.",
                class_="good",
            ),
        )
    if changes:
        body = (
            [change.kind, *map(prose, (change.name, change.before, change.after))]
            for change in changes
        )
        yield tag("h3", "Differences")
        yield _table(("kind", "what", "before", "after"), body)


def _label(label: str) -> str:
    """The label; one that is part of the row above is set in."""
    return f"\u2003{label.strip()}" if label.startswith(" ") else label


def _lists(plan: Plan, time: str) -> Markup:
    when = "" if time == "bytes" else f" {time}"
    parts = []
    for title, lines in (
        ("Units", unit_lines(plan)),
        ("Parameter groups", group_lines(plan)),
        ("Notes", iter(plan.notes)),
    ):
        items = [tag("li", line, class_="mono") for line in lines]
        if items:
            parts += [tag("h3", f"{title}{when}"), tag("ul", items)]
    return tag("div", parts)


def ledger(entries: Sequence[Entry], diff: str) -> Iterator[Markup]:
    """A row for each symbol, filtered by outcome and by words where scripts run."""
    if not entries:
        return
    counts = Counter(entry.outcome for entry in entries)
    yield _filter(counts)
    places = {name: f"#{anchor(number)}" for number, name in enumerate(files(diff))}
    head = (tag("th", title) for title in ("file", "line", "symbol", "outcome", "note"))
    bodies = [
        tag("tbody", _of_model(model), [_entry(one, places.get(one.path)) for one in of])
        for model, of in groupby(entries, key=lambda entry: entry.model)
    ]
    yield tag("div", tag("table", tag("thead", tag("tr", head)), bodies), class_="scroll")


def _of_model(model: str) -> Markup:
    """The line above the entries of a model."""
    return tag("tr", tag("th", model, colspan=5)) if model else Markup("")


def _filter(counts: Counter[Outcome]) -> Markup:
    boxes = [
        tag(
            "label",
            tag("input", type="checkbox", value=outcome, checked=True),
            f" {outcome} ({number})",
        )
        for outcome, number in counts.items()
    ]
    words = tag("input", type="search", placeholder="file, symbol or note", aria_label="words")
    shown = tag("span", "", id="shown", class_="dim")
    return tag("form", boxes, words, shown, id="filter", class_="filter", hidden=True)


def _entry(entry: Entry, place: str | None) -> Markup:
    path = tag("code", entry.path)
    return tag(
        "tr",
        tag("td", tag("a", path, href=place) if place else path),
        tag("td", entry.place, class_="number"),
        tag("td", tag("code", entry.symbol)),
        tag("td", entry.outcome, class_=f"outcome {entry.outcome}"),
        tag("td", prose(entry.note)),
        data_outcome=entry.outcome,
    )


def contract(told: str) -> Markup:
    """What the new program breaks of the contract, as the terminal shows it."""
    return tag("pre", told.rstrip()) if told else Markup("")


def notes(told: Sequence[str]) -> Iterator[Markup]:
    """What else is worth knowing."""
    if told:
        yield tag("ul", map(_item, told))


def _table(
    head: Sequence[str], body: Iterable[Sequence[str]], numbers: Sequence[int] = ()
) -> Markup:
    """A table; the columns of ``numbers`` are set flush right."""
    sides = ["number" if column in numbers else None for column in range(len(head))]
    titles = (tag("th", cell, class_=side) for cell, side in zip(head, sides, strict=True))
    lines = (
        tag("tr", [tag("td", cell, class_=side) for cell, side in zip(row, sides, strict=True)])
        for row in body
    )
    table = tag("table", tag("thead", tag("tr", titles)), tag("tbody", lines))
    return tag("div", table, class_="scroll")


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
