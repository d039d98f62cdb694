"""The steps of two runs side by side: losses of every rank, gradient norms, learning rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from fsdp2lint.verify.equality.results import Compared, Difference, Kind, relative
from fsdp2lint.verify.outcome import RankReport, Step

Number = float | None

ADDED = 1e-12
"""Norms are added up here, in double precision and in the order in which parameters are held."""

_WORDS: dict[Kind, str] = {
    "loss": "loss",
    "norm": "gradient norm",
    "rate": "learning rate",
}


def compare(
    before: Sequence[RankReport], after: Sequence[RankReport], rtol: float
) -> list[Compared]:
    """Losses, norms and rates of all steps, in the order of what to look at first."""
    losses, norms, rates = (
        Compared("losses"),
        Compared("gradient norms"),
        Compared("learning rates"),
    )
    counts = [len(rank.steps) for rank in before], [len(rank.steps) for rank in after]
    for step in range(min(*counts[0], *counts[1])):
        for old, new in zip(before, after, strict=True):
            _losses(losses, old.steps[step], new.steps[step], step + 1, old.rank, rtol)
        both = norm(before, step), norm(after, step)
        _number(norms, "norm", *both, _Place(step + 1, None), max(rtol, ADDED))
        _rates(rates, before[0].steps[step], after[0].steps[step], step + 1, rtol)
    if counts[0] != counts[1]:
        losses.differences.append(_different_numbers(*counts))
    for compared in (losses, norms, rates):
        compared.differences = _first(compared.differences)
    return [losses, norms, rates]


def norm(ranks: Sequence[RankReport], step: int) -> Number:
    """The norm of the whole gradient, of which each rank reported its part."""
    parts = [rank.steps[step].squares for rank in ranks]
    return None if None in parts else math.sqrt(sum(part for part in parts if part is not None))


class _Place:
    def __init__(self, step: int, rank: int | None, group: int | None = None) -> None:
        self.step, self.rank, self.group = step, rank, group

    def __str__(self) -> str:
        rank = "" if self.rank is None else f" on rank {self.rank}"
        group = "" if self.group is None else f" of parameter group {self.group}"
        return f"{group}{rank} at step {self.step}"


def _losses(
    compared: Compared, before: Step, after: Step, step: int, rank: int, rtol: float
) -> None:
    if len(before.losses) != len(after.losses):
        message = (
            f"BEFORE calls backward {_times(len(before.losses))} on rank {rank} for step {step}, "
            f"AFTER {_times(len(after.losses))}"
        )
        compared.differences.append(Difference("loss", message, step, rank))
        return
    for old, new in zip(before.losses, after.losses, strict=True):
        _number(compared, "loss", old, new, _Place(step, rank), rtol)


def _rates(compared: Compared, before: Step, after: Step, step: int, rtol: float) -> None:
    if len(before.rates) != len(after.rates):
        message = (
            f"the optimizer that makes step {step} has {len(before.rates)} parameter groups "
            f"in BEFORE and {len(after.rates)} in AFTER"
        )
        compared.differences.append(Difference("rate", message, step))
        return
    several = len(before.rates) > 1
    for group, (old, new) in enumerate(zip(before.rates, after.rates, strict=True)):
        _number(compared, "rate", old, new, _Place(step, None, group if several else None), rtol)


def _number(
    compared: Compared, kind: Kind, before: Number, after: Number, place: _Place, rtol: float
) -> None:
    compared.count += 1
    if before == after:
        compared.identical += 1
        return
    apart = None if before is None or after is None else relative(before, after)
    if apart is not None:
        compared.relative = max(compared.relative, apart)
        if apart <= rtol:
            return
    message = f"the {_WORDS[kind]}{place} is {_told(before)} in BEFORE and {_told(after)} in AFTER"
    difference = Difference(
        kind, message, place.step, place.rank, before=before, after=after, relative=apart
    )
    compared.differences.append(difference)


def _different_numbers(before: list[int], after: list[int]) -> Difference:
    rank = next(
        (n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new), 0
    )
    step = min(before[rank], after[rank]) + 1
    message = f"on rank {rank} BEFORE makes {before[rank]} optimizer steps and AFTER {after[rank]}"
    return Difference("steps", message, step, rank)


def _first(found: list[Difference]) -> list[Difference]:
    """The earliest of each kind, which says how many follow."""
    return [_with_more(kind, found) for kind in dict.fromkeys(one.kind for one in found)]


def _with_more(kind: Kind, found: list[Difference]) -> Difference:
    ours = [one for one in found if one.kind == kind]
    first = min(ours, key=lambda one: (one.step or 0, one.rank or 0))
    return msgspec.structs.replace(first, more=len(ours) - 1)


def curve(ranks: Sequence[RankReport]) -> Iterator[Number]:
    """The mean loss over the ranks at each step that all of them made."""
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        losses = [loss for step in steps for loss in step.losses]
        known = [loss for loss in losses if loss is not None]
        yield sum(known) / len(steps) if known and len(known) == len(losses) else None


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def _told(number: Number) -> str:
    return "no finite number" if number is None else f"{number:.9g}"
