"""What explains the first difference of two runs: where in the model it begins, how parameters are computed, which collective is another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from fsdp2lint.plan.compare import compare_plans
from fsdp2lint.plan.data import Model, Plan
from fsdp2lint.plan.words import alike
from fsdp2lint.rehearse.outcome import Exchange, Inner, RankReport, Spot, Step
from fsdp2lint.rehearse.results import Difference
from fsdp2lint.rehearse.words import spot

LEAST = 1e-9
"""Sums inside of a module may be made in another order."""
SHOWN = 3
"""So many settings are named."""

_COMPUTED = ("loss", "gradient", "norm", "clipping", "evaluation")
"""What the modules of a model lead to."""
_AFTERWARDS = ("evaluation", "printed", "file")
"""What is done after the step that it is counted to."""
_UNEXPLAINED = ("numerics", "setting", "data", "rate", "companion")
"""What says itself what it is."""

Lines = tuple[Spot | None, Spot | None]


class Side(NamedTuple):
    """One of the two runs."""

    ranks: Sequence[RankReport]
    models: tuple[Model, ...]
    """How they are sharded."""


def explained(difference: Difference, before: Side, after: Side, rtol: float) -> Difference:
    """A difference with what of the programs explains it, and the lines at which they part."""
    if difference.kind in _UNEXPLAINED:
        return difference
    lines, found = difference.lines, list(_of_sharding(before.models, after.models))
    sides = _steps(difference, before), _steps(difference, after)
    if difference.kind in _COMPUTED:
        where, at = _in_model(sides[0][-1:], sides[1][-1:], difference, rtol)
        found[:0] = where
        lines = at if None not in at else lines
    found += _exchanges(*sides)
    return msgspec.structs.replace(difference, causes=tuple(found), lines=lines)


def _steps(difference: Difference, side: Side) -> list[Step]:
    """What the rank that differs has done up to there."""
    rank = side.ranks[difference.rank or 0]
    every = [*rank.steps, rank.rest]
    if difference.step is None:
        return every
    return every[: difference.step + (difference.kind in _AFTERWARDS)]


def _of_sharding(before: Sequence[Model], after: Sequence[Model]) -> Iterator[str]:
    """What is grouped, sharded or computed otherwise; memory against communication changes no number."""
    plans = [Plan("", 0, tuple(models), ()) for models in (before, after)]
    if not (before and after):
        return
    changes = [one for one in alike(compare_plans(*plans)) if one.essential]
    for change in changes[:SHOWN]:
        yield f"{change.name}: {change.before} in BEFORE, {change.after} in AFTER"
    if len(changes) > SHOWN:
        yield f"{len(changes) - SHOWN} more differences of this kind"


def _in_model(
    before: Sequence[Step], after: Sequence[Step], difference: Difference, rtol: float
) -> tuple[list[str], Lines]:
    """The first module whose result differs, in the order of the run, and where each program calls it."""
    old, new = (_results(steps, difference) for steps in (before, after))
    if not (old and new):
        return [], (None, None)
    for key, was in old.items():
        now = new.get(key)
        if now is None:
            return [f"AFTER does not call {_called(was)}"], (was.at, None)
        apart = _apart(was, now)
        if was.dtype != now.dtype:
            text = f"{_called(was)} returns {was.dtype} in BEFORE and {now.dtype} in AFTER"
            return [text], (was.at, now.at)
        if apart > max(rtol, LEAST):
            text = f"{_called(was)} is the first module whose output differs, by {apart:.2g}"
            return [text], (was.at, now.at)
    extra = next((one for key, one in new.items() if key not in old), None)
    if extra is not None:
        return [f"BEFORE does not call {_called(extra)}"], (None, extra.at)
    if difference.kind == "loss":
        text = (
            "all modules of the model return the same: the programs compute other losses from that"
        )
        return [text], (None, None)
    return [], (None, None)


def _results(steps: Sequence[Step], difference: Difference) -> dict[tuple[str, int], Inner]:
    """What modules return, by name and which time."""
    evaluates = difference.kind == "evaluation"
    every = [
        one
        for step in steps
        for call in step.calls
        if call.evaluates == evaluates
        for one in call.inside
    ]
    times: Counter[str] = Counter()
    found = {}
    for one in every:
        found[one.name, times[one.name]] = one
        times[one.name] += 1
    return found


def _called(inner: Inner) -> str:
    return f"`{inner.name}` ({inner.kind})" if inner.name else f"the model ({inner.kind})"


def _apart(before: Inner, after: Inner) -> float:
    pairs = (before.norm, after.norm), (before.weighted, after.weighted)
    if any((one is None) != (other is None) for one, other in pairs):
        return 1.0
    norms = [one for one in pairs[0] if one is not None]
    largest = max(norms, default=0.0) or 1.0
    both = (abs(one - other) for one, other in pairs if one is not None and other is not None)
    return max(both, default=0.0) / largest


def _exchanges(before: Sequence[Step], after: Sequence[Step]) -> Iterator[str]:
    """The first collective of the script's own that is another, where both make as many of the same."""
    for old, new in zip(before, after, strict=False):
        if [one.call for one in old.exchanges] != [one.call for one in new.exchanges]:
            yield from _alone(old.exchanges, new.exchanges)
            return
        for was, now in zip(old.exchanges, new.exchanges, strict=True):
            if _form(was) != _form(now):
                yield f"{_said(was)} in BEFORE, {_said(now)} in AFTER"
                return


def _alone(before: Sequence[Exchange], after: Sequence[Exchange]) -> Iterator[str]:
    """A collective that only one of them makes."""
    for mine, theirs, who, other in (
        (before, after, "BEFORE", "AFTER"),
        (after, before, "AFTER", "BEFORE"),
    ):
        left = Counter(_form(one) for one in theirs)
        for one in mine:
            left[_form(one)] -= 1
            if left[_form(one)] < 0:
                yield f"only {who} calls {_said(one)}, {other} does not"
                return


def _form(one: Exchange) -> tuple[str, str, str, tuple[int, ...]]:
    return one.call, one.reduces, one.what, one.ranks


def _said(one: Exchange) -> str:
    reduces = f"({one.reduces})" if one.reduces else ""
    what = f" of {one.what}" if one.what else ""
    ranks = f" over ranks {', '.join(map(str, one.ranks))}" if one.ranks else ""
    at = f" at {spot(one.at)}" if one.at else ""
    return f"{one.call}{reduces}{what}{ranks}{at}"
