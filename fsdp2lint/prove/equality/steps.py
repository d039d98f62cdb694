"""The steps of two runs side by side: losses of every rank, gradient norms, learning rates, data, evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal

import msgspec

from fsdp2lint.rehearse.outcome import Call, Companion, Digest, RankReport, Spot, Step
from fsdp2lint.rehearse.results import Compared, Difference, Kind, relative

Number = float | None

SUMMED = 1e-9
"""Gradients of single parameters may be added up in parts that are not the same."""
SINGLE = 100.0
"""So many times the tolerance the gradient of one parameter may be off where sums are rounded otherwise."""
UNCLIPPED = 10.0
"""And the norm of all: clipping takes its noise away, so the tolerance does not know it."""
SMALL = 0.1
"""Gradients smaller than this share of the largest may be noise: they are compared to it."""
LOOSE = 1e-5
"""How near norms are that two programs clip to one limit."""
ADDED = 1e-12
"""Norms are added up here, in double precision and in the order in which parameters are held."""

LIMIT: Literal["limit"] = "limit"
"""What clipping allows is asked for: no rounding changes it."""

What = Literal["loss", "norm", "rate", "clipping", "limit"]
_WORDS: dict[What, tuple[Kind, str]] = {
    "loss": ("loss", "loss"),
    "norm": ("norm", "gradient norm"),
    "rate": ("rate", "learning rate"),
    "clipping": ("clipping", "gradient norm before clipping"),
    "limit": ("clipping", "largest norm of the gradients"),
}


Noise = dict[Kind, list[float]]
"""By what differs and by step: how far two runs of BEFORE are apart that are rounded otherwise, up to this step."""

BEYOND = 4.0
"""So many times its noise a number may be off: two other runs are apart by as much again."""


def compare(
    before: Sequence[RankReport],
    after: Sequence[RankReport],
    rtol: float,
    noise: Noise | None = None,
) -> list[Compared]:
    """Everything that ranks report of their steps, in the order of what to look at first."""
    every = _compared(before, after, rtol)
    for compared in every:
        told = [one for one in compared.differences if not _is_noise(one, noise or {})]
        compared.differences = [_with_lines(one, before, after) for one in _first(told)]
    return [*every, _companions(before, after, rtol), _numerics(before, after)]


def noise(before: Sequence[RankReport], again: Sequence[RankReport]) -> Noise:
    """How far rounding alone leads in each number of a run."""
    found: Noise = {}
    steps = max(len(rank.steps) for rank in before) + 2
    for compared in _compared(before, again, 0.0):
        for one in compared.differences:
            if one.relative is not None and one.step is not None:
                most = found.setdefault(one.kind, [0.0] * steps)
                most[one.step] = max(most[one.step], one.relative)
    return {kind: list(accumulate(most, max)) for kind, most in found.items()}


def _is_noise(difference: Difference, noise: Noise) -> bool:
    most = noise.get(difference.kind)
    if most is None or difference.relative is None or difference.step is None:
        return False
    return (
        difference.name != LIMIT
        and difference.relative <= BEYOND * most[min(difference.step, len(most) - 1)]
    )


def _compared(
    before: Sequence[RankReport], after: Sequence[RankReport], rtol: float
) -> list[Compared]:
    """All differences of what belongs to steps."""
    losses, norms, rates = (
        Compared("losses"),
        Compared("gradient norms"),
        Compared("learning rates"),
    )
    data, evaluation = Compared("batches"), Compared("evaluation")
    clipping, gradients = Compared("clipping"), Compared("gradients")
    counts = [len(rank.steps) for rank in before], [len(rank.steps) for rank in after]
    for step in range(min(*counts[0], *counts[1])):
        for old, new in zip(before, after, strict=True):
            _losses(losses, old.steps[step], new.steps[step], step + 1, old.rank, rtol)
            _rates(rates, old.steps[step], new.steps[step], step + 1, old.rank, rtol)
        both = norm(before, step), norm(after, step)
        _number(norms, "norm", *both, _Place(step + 1, None), max(rtol, ADDED))
        _clips(clipping, before, after, step, max(rtol, ADDED))
        _gradients(gradients, before, after, step, max(SINGLE * rtol, SUMMED))
    for old, new in zip(before, after, strict=True):
        for number, (was, now) in enumerate(zip(_all(old), _all(new), strict=False), 1):
            place = _Place(min(number, len(old.steps)), old.rank)
            _data(data, was, now, place, rtol)
            _evaluation(evaluation, was, now, _Place(number - 1, old.rank), rtol)
    clipping.differences += _unclipped(before, after, min(*counts[0], *counts[1]))
    if counts[0] != counts[1]:
        losses.differences.append(_different_numbers(*counts))
    return [losses, norms, rates, data, evaluation, gradients, clipping]


def _all(rank: RankReport) -> list[Step]:
    return [*rank.steps, rank.rest]


def norm(ranks: Sequence[RankReport], step: int) -> Number:
    """The norm of the whole gradient, of which each rank reported its part."""
    return _root(rank.steps[step].squares for rank in ranks)


def _root(parts: Iterable[Number]) -> Number:
    known = list(parts)
    return None if None in known else math.sqrt(sum(part for part in known if part is not None))


def _gradients(
    compared: Compared,
    before: Sequence[RankReport],
    after: Sequence[RankReport],
    step: int,
    rtol: float,
) -> None:
    """The gradient that differs first, where both programs have gradients of the same names.

    That is the one of the module that runs last, where the backward pass begins; of one module, or where that is not known,
    the one that differs most.
    """
    old, new = ([rank.steps[step].gradients for rank in ranks] for ranks in (before, after))
    names = _named(old) & _named(new)
    whole = norm(before, step) or 0.0, norm(after, step) or 0.0
    if names and relative(*whole) > rtol:  # else one names its parameters otherwise
        names = _named(old) | _named(new)
    norms = {name: tuple(_norm_of(name, side) for side in (old, new)) for name in sorted(names)}
    largest = max((max(both) for both in norms.values()), default=0.0)
    compared.count += len(norms)
    compared.identical += sum(one == other for one, other in norms.values())
    apart = {
        name: abs(one - other) / max(one, other, SMALL * largest)
        for name, (one, other) in norms.items()
        if one != other
    }
    compared.relative = max(compared.relative, max(apart.values(), default=0.0))
    found = {name: distance for name, distance in apart.items() if distance > rtol}
    if not found:
        return
    order = _order_of_modules(before[0].steps[step])
    first = max(found, key=lambda name: (order.get(name.rpartition(".")[0], -1), found[name]))
    among = "alone" if len(found) == 1 else f"and {len(found) - 1} others of {len(norms)}"
    one, other = norms[first]
    message = (
        f"the gradient of `{first}` {among} differs at step {step + 1}: its norm is {one:.6g} in BEFORE "
        f"and {other:.6g} in AFTER"
    )
    compared.differences.append(
        Difference("gradient", message, step + 1, name=first, relative=max(found.values()))
    )


def _order_of_modules(step: Step) -> dict[str, int]:
    """When each module of the models returns last."""
    inside = [one.name for call in step.calls if not call.evaluates for one in call.inside]
    return {name: place for place, name in enumerate(inside)}


def _named(parts: Sequence[dict[str, float]]) -> set[str]:
    return {name for part in parts for name in part}


def _norm_of(name: str, parts: Sequence[dict[str, float]]) -> float:
    return math.sqrt(sum(part.get(name, 0.0) for part in parts))


def _with_lines(
    difference: Difference, before: Sequence[RankReport], after: Sequence[RankReport]
) -> Difference:
    """With the lines of both programs that compute what differs."""
    if difference.step is None or difference.lines != (None, None):
        return difference
    old, new = (_line(difference, ranks[difference.rank or 0]) for ranks in (before, after))
    return msgspec.structs.replace(difference, lines=(old, new))


def _line(difference: Difference, rank: RankReport) -> Spot | None:
    place = (difference.step or 1) - 1
    step = rank.steps[place] if place < len(rank.steps) else Step()
    if difference.kind == "clipping":
        return step.clips[0].at if step.clips else None
    return step.lines.get("loss" if difference.kind in ("loss", "gradient") else "step")


def _clips(
    compared: Compared,
    before: Sequence[RankReport],
    after: Sequence[RankReport],
    step: int,
    rtol: float,
) -> None:
    """How gradients are clipped, where both programs call what PyTorch has for it as often."""
    old, new = ([rank.steps[step].clips for rank in ranks] for ranks in (before, after))
    if len({len(clips) for clips in (*old, *new)}) > 1:
        return
    for number in range(len(old[0])):
        place = _Place(step + 1, None)
        orders = old[0][number].order, new[0][number].order
        if all(orders) and orders[0] != orders[1]:
            kinds = ["each value" if one == "value" else f"the {one}-norm" for one in orders]
            message = (
                f"at step {step + 1} BEFORE clips {kinds[0]} of the gradients and AFTER {kinds[1]}"
            )
            compared.differences.append(Difference("clipping", message, step + 1, name="clipping"))
        limits = old[0][number].limit, new[0][number].limit
        if None not in limits:
            _number(compared, "limit", *limits, place, rtol)
        was, now = (_root(clips[number].squares for clips in side) for side in (old, new))
        _number(compared, "clipping", was, now, place, max(UNCLIPPED * rtol, ADDED))


def _unclipped(
    before: Sequence[RankReport], after: Sequence[RankReport], steps: int
) -> Iterator[Difference]:
    """The steps for which only BEFORE calls what PyTorch has for clipping, and AFTER has no means of its own.

    Its own means show where a norm is above the limit, and comes out alike.
    """
    for step in range(steps):
        old, new = before[0].steps[step], after[0].steps[step]
        if not old.clips or new.clips:
            continue
        first = old.clips[0]
        if first.order not in ("", "value") and first.limit is not None:
            whole = _root(rank.steps[step].clips[0].squares for rank in before) or 0.0
            norms = [norm(side, step) or 0.0 for side in (before, after)]
            if whole > first.limit and relative(*norms) <= UNCLIPPED * LOOSE:
                return
    for step in range(steps):
        clips = before[0].steps[step].clips
        if clips and not after[0].steps[step].clips:
            message = f"BEFORE clips the gradients at step {step + 1}, AFTER does not"
            # fmt: off
            yield Difference(
                "clipping", message, step + 1, name="clipping", lines=(clips[0].at, None), missing=True
            )
            # fmt: on


def _companions(before: Sequence[RankReport], after: Sequence[RankReport], rtol: float) -> Compared:
    """Schedulers, scalers, samplers and loaders, those of a kind in any order."""
    compared = Compared("schedules, loaders")
    for old, new in zip(before, after, strict=True):
        for kind in dict.fromkeys(one.kind for one in old.companions):
            mine, theirs = ([c for c in r.companions if c.kind == kind] for r in (old, new))
            if len(theirs) < len(mine):
                message = f"BEFORE has {_amount(mine, kind, f'{kind}s')} on rank {old.rank}, AFTER {len(theirs) or 'none'}"
                lost = Difference("companion", message, rank=old.rank, name=kind, missing=True)
                compared.differences.append(lost)
                continue
            left, alone = list(theirs), []
            for one in mine:
                if one in left:
                    left.remove(one)
                else:
                    alone.append(one)
            compared.count += len(mine)
            compared.identical += len(mine) - len(alone)
            for one in alone:
                other = max(left, key=lambda o: len(o.numbers.items() & one.numbers.items()))
                left.remove(other)
                _settings(compared, one, other, old.rank, rtol)
    compared.differences = _first(compared.differences)
    return compared


def _settings(
    compared: Compared, before: Companion, after: Companion, rank: int, rtol: float
) -> None:
    for name, old in before.numbers.items():
        new = after.numbers.get(name)
        if isinstance(old, str) or isinstance(new, str):
            apart = old != new
        else:
            apart = new is None or relative(old, new) > max(rtol, ADDED)
        if apart:
            shown = "not there" if new is None else _text(new)
            message = f"`{name}` of {before.kind} on rank {rank} is {_text(old)} in BEFORE and {shown} in AFTER"
            difference = Difference("companion", message, rank=rank, name=f"{before.kind}.{name}")
            compared.differences.append(difference)


def _numerics(before: Sequence[RankReport], after: Sequence[RankReport]) -> Compared:
    compared = Compared("precision")
    for old, new in zip(before[:1], after[:1], strict=True):
        for name in old.numerics.keys() & new.numerics.keys():
            compared.count += 1
            mine, theirs = old.numerics[name], new.numerics[name]
            compared.identical += mine == theirs
            if mine != theirs:
                message = f"PyTorch's {name} is {mine} in BEFORE and {theirs} in AFTER"
                compared.differences.append(Difference("numerics", message, name=name))
    return compared


class _Place:
    def __init__(
        self,
        step: int,
        rank: int | None,
        group: int | None = None,
        backward: int | None = None,
    ) -> None:
        self.step, self.rank, self.group, self.backward = step, rank, group, backward

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
        compared.differences.append(Difference("loss", message, step, rank, backward=0))
        return
    for number, (old, new) in enumerate(zip(before.losses, after.losses, strict=True)):
        _number(compared, "loss", old, new, _Place(step, rank, backward=number), rtol)


def _rates(
    compared: Compared, before: Step, after: Step, step: int, rank: int, rtol: float
) -> None:
    if len(before.rates) != len(after.rates):
        message = (
            f"the optimizer that makes step {step} has {len(before.rates)} parameter groups "
            f"in BEFORE and {len(after.rates)} in AFTER"
        )
        compared.differences.append(Difference("rate", message, step, rank))
        return
    several = len(before.rates) > 1
    for group, (old, new) in enumerate(zip(before.rates, after.rates, strict=True)):
        _number(compared, "rate", old, new, _Place(step, rank, group if several else None), rtol)


def _number(
    compared: Compared, what: What, before: Number, after: Number, place: _Place, rtol: float
) -> None:
    compared.count += 1
    if before is None and after is None:
        if what == "loss" and not compared.unproven:
            compared.unproven = f"the loss{place} is not finite in either program"
        return
    if before == after:
        compared.identical += 1
        return
    apart = None if before is None or after is None else relative(before, after)
    if apart is not None:
        compared.relative = max(compared.relative, apart)
        if apart <= rtol:
            return
    kind, words = _WORDS[what]
    message = f"the {words}{place} is {_text(before)} in BEFORE and {_text(after)} in AFTER"
    name = LIMIT if what == LIMIT else ""
    difference = Difference(
        kind,
        message,
        place.step,
        place.rank,
        name,
        before=before,
        after=after,
        relative=apart,
        backward=place.backward,
    )
    compared.differences.append(difference)


def _data(compared: Compared, before: Step, after: Step, place: _Place, rtol: float) -> None:
    """What both give to their models for one step, call by call."""
    old, new = ([call for call in _with_data(s) if not call.evaluates] for s in (before, after))
    where = f"on rank {place.rank} for step {place.step}"
    if old and len(old) != len(new):
        message = (
            f"{where} BEFORE gives its models {_amount(old, 'batch', 'batches')}, "
            f"AFTER {_amount(new, 'batch', 'batches')}"
        )
        compared.differences.append(Difference("data", message, place.step, place.rank, backward=0))
        return
    for number, (was, now) in enumerate(zip(old, new, strict=False)):
        place.backward = number * len(before.losses) // len(old)
        _batch(compared, was, now, where, place, rtol)


def _batch(
    compared: Compared, before: Call, after: Call, where: str, place: _Place, rtol: float
) -> None:
    compared.count += 1
    shapes = [[digest.shape for digest in call.given] for call in (before, after)]
    if shapes[0] != shapes[1] and _is_part_of(after.given, before.given, rtol):
        note = (
            f"AFTER's module is called with {len(after.given)} of the {_amount(before.given, 'tensor', 'tensors')} that "
            "BEFORE's wrapper is called with, and they are equal; the step uses the rest outside the module's forward"
        )
        if note not in compared.notes:
            compared.notes.append(note)
        return
    if shapes[0] != shapes[1]:
        what = " and ".join(
            f"{_shapes(each)} in {side}"
            for each, side in zip(shapes, ("BEFORE", "AFTER"), strict=True)
        )
        message = f"the batch {where} has {what}"
    else:
        apart = _farthest(before.given, after.given)
        compared.relative = max(compared.relative, apart)
        compared.identical += apart == 0
        if apart <= rtol and not (modes := _modes(before, after)):
            return
        message = (
            f"the batch {where} holds other data in AFTER"
            if apart > rtol
            else f"the model is called {where} with {modes}"
        )
    lines = before.at, after.at
    compared.differences.append(
        Difference("data", message, place.step, place.rank, lines=lines, backward=place.backward)
    )


def _evaluation(compared: Compared, before: Step, after: Step, place: _Place, rtol: float) -> None:
    """What models return without gradients between two steps, and what they are given for it."""
    old, new = ([call for call in step.calls if call.evaluates] for step in (before, after))
    where = f"on rank {place.rank} after step {place.step}"
    if len(old) > len(new):
        message = (
            f"{where} BEFORE calls its models {_times(len(old))} without gradients, "
            f"AFTER {_times(len(new))}"
        )
        compared.differences.append(Difference("evaluation", message, place.step, place.rank))
        return
    if len(old) < len(new):
        if old:
            compared.notes.append(f"{where} AFTER evaluates more than BEFORE: not compared")
        return
    for number, (was, now) in enumerate(zip(old, new, strict=True), 1):
        compared.count += 1
        every = (*was.given, *was.made), (*now.given, *now.made)
        if modes := _modes(was, now):
            message = f"call {number} without gradients {where} has {modes}"
            lines = was.at, now.at
            found = Difference("evaluation", message, place.step, place.rank, lines=lines)
            compared.differences.append(found)
            continue
        if [d.shape for d in every[0]] != [d.shape for d in every[1]]:
            apart = None
            message = f"call {number} without gradients {where} has tensors of other shapes"
        else:
            apart = _farthest(*every)
            compared.relative = max(compared.relative, apart)
            compared.identical += apart == 0
            if apart <= rtol:
                continue
            what = "is given other data" if _farthest(was.given, now.given) > rtol else "differs"
            message = f"call {number} without gradients {where} {what}, by {apart:.2g}"
        lines = was.at, now.at
        differs = Difference(
            "evaluation", message, place.step, place.rank, lines=lines, relative=apart
        )
        compared.differences.append(differs)


def _modes(before: Call, after: Call) -> str:
    """How many layers of a model train in either program, where that is not the same."""
    same = before.parts == after.parts
    if before.training == after.training or (not same and before.training and after.training):
        return ""
    trains = [f"{one.training} of {one.parts} layers in training mode" for one in (before, after)]
    return f"{trains[0]} in BEFORE and {trains[1]} in AFTER"


def _with_data(step: Step) -> list[Call]:
    return [call for call in step.calls if call.given]


def _farthest(before: Sequence[Digest], after: Sequence[Digest]) -> float:
    return max((_apart(old, new) for old, new in zip(before, after, strict=True)), default=0.0)


def _apart(before: Digest, after: Digest) -> float:
    """How far two tensors are apart, relative to their norm; 0 when they seem to be the same."""
    if before == after:
        return 0.0
    if None in (before.norm, after.norm, before.weighted, after.weighted):
        return 1.0
    largest = max(before.norm or 0.0, after.norm or 0.0) or 1.0
    sums = abs((before.weighted or 0.0) - (after.weighted or 0.0))
    return max(abs((before.norm or 0.0) - (after.norm or 0.0)), sums) / largest


def _is_part_of(some: Sequence[Digest], every: Sequence[Digest], rtol: float) -> bool:
    """Whether each of some tensors is one of the others: what the rest does shows in losses and gradients."""
    left = list(every)
    for one in some:
        same = next((o for o in left if o.shape == one.shape and _apart(o, one) <= rtol), None)
        if same is None:
            return False
        left.remove(same)
    return bool(some)


def _shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    return "shape " + ", ".join(map(str, shapes)) if shapes else "no tensor"


def _amount(things: Sequence[object], one: str, several: str) -> str:
    return f"1 {one}" if len(things) == 1 else f"{len(things) or 'no'} {several}"


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
    first = min(ours, key=lambda one: (one.step or 0, one.backward or 0, one.rank or 0))
    return msgspec.structs.replace(first, more=len(ours) - 1)


def curve(ranks: Sequence[RankReport]) -> Iterator[Number]:
    """The mean loss over the ranks at each step that all of them made."""
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        losses = [loss for step in steps for loss in step.losses]
        known = [loss for loss in losses if loss is not None]
        yield sum(known) / len(steps) if known and len(known) == len(losses) else None


def _times(number: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _text(number: Number | str) -> str:
    if isinstance(number, str):
        return number
    return "no finite number" if number is None else f"{number:.9g}"
