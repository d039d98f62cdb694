"""The checkpoints that two runs wrote, entry by entry, whatever their format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from fsdp2lint.prove.equality.contents import Contents, OptimizerState, Weights, is_tensor, named
from fsdp2lint.prove.equality.reading import Unreadable, read
from fsdp2lint.prove.equality.settled import settings_of_version_1
from fsdp2lint.prove.equality.shards import Layout, merged
from fsdp2lint.prove.equality.tensors import Sides, Slack
from fsdp2lint.rehearse.results import Checkpoint, Compared, Difference

Held = TypeVar("Held")

BOOKKEEPING = frozenset({"foreach", "fused", "capturable", "differentiable", "initial_lr"})
"""Settings of a parameter group that say how a step is computed, or what a scheduler began with."""


def compare_checkpoints(
    before: Sequence[Checkpoint],
    after: Sequence[Checkpoint],
    names: Sequence[list[str]],
    shapes: dict[str, torch.Size],
    buffers: Collection[str],
    rtol: float,
    slack: Slack = lambda _: None,
    layouts: Mapping[str, Layout] | None = None,
    state_slack: Slack = lambda _: None,
) -> Compared:
    """Weights by clean name, optimizer state by parameter, and numbers that both have.

    ``names`` are the parameters of each model in order, to give numbered optimizer state its names;
    ``layouts`` say what the flat parameters of FSDP1 are made of, ``slack`` how far elements of a parameter may be
    apart, ``state_slack`` those of its optimizer state, by ``parameter: slot``.
    """
    compared = Compared(_title(before, after))
    if not before:  # a conversion, or a copy: no less than BEFORE has
        compared.notes.append(f"only AFTER writes it, after step {after[0].step}")
        return compared
    if not after:
        message = f"AFTER writes no checkpoint after step {before[0].step}, BEFORE does"
        lost = Difference("checkpoint", message, before[0].step, name=before[0].name, missing=True)
        compared.differences.append(lost)
        return compared
    known = set(shapes) | set(buffers)
    try:
        old = _read(before, known, layouts or {})
    except Unreadable as problem:
        compared.notes.append(f"not compared: {problem}")
        compared.unread = len(before)
        return compared
    try:
        new = _read(after, known, layouts or {})
    except Unreadable as problem:
        message = f"the checkpoint of AFTER cannot be read: {problem}"
        compared.differences.append(Difference("checkpoint", message, before[0].step))
        return compared
    held = Sides(compared, "checkpoint", rtol, slack)
    _weights(old.weights, new.weights, held)
    held.close()
    sides = Sides(compared, "checkpoint", rtol)
    for state in (*old.optimizers, *new.optimizers):
        if state.numbered and not any(named(state, each, shapes, layouts or {}) for each in names):
            text = (
                f"the optimizer state at `{state.place}` has numbers that fit no model's parameters"
            )
            compared.notes.append(text)
    slots = Sides(compared, "checkpoint", rtol, state_slack)
    _optimizers(old.optimizers, new.optimizers, slots, sides, compared)
    slots.close()
    settled = settings_of_version_1(before[0].name, old.others, new.others)
    for place, why in settled.items():
        compared.notes.append(f"expected after the migration of the settings: `{place}`: {why}")
        old.others.pop(place)
        new.others.pop(place, None)
    compared.count += len(settled)
    _others(old.others, new.others, sides, compared)
    sides.close()
    return compared


def _title(before: Sequence[Checkpoint], after: Sequence[Checkpoint]) -> str:
    sides = [" + ".join(one.name for one in side) for side in (before, after) if side]
    return " / ".join(dict.fromkeys(sides))


def _read(
    checkpoints: Sequence[Checkpoint], known: Collection[str], layouts: Mapping[str, Layout]
) -> Contents:
    """Everything in them, together.

    Raises:
        Unreadable: one of them is no checkpoint, or not complete; the text names it.
    """
    contents = Contents()
    for checkpoint in checkpoints:
        try:
            trees = [read(path) for path in checkpoint.paths]
        except (Unreadable, OSError) as problem:
            raise Unreadable(f"`{checkpoint.name}`: {problem}") from problem
        contents.sort(merged(trees) if len(trees) > 1 else trees[0], known, layouts)
    return contents


def _weights(before: list[Weights], after: list[Weights], sides: Sides) -> None:
    for weights, partner in paired(before, after, _closeness):
        several = f"{weights.place}." if len(before) > 1 and weights.place else ""
        if partner is None:
            message = f"AFTER does not save the weights at `{weights.place or 'the top'}`"
            sides.lacks(weights.place, message)
        else:
            sides.compare(weights.tensors, partner.tensors, several)


def paired(
    before: Sequence[Held], after: Sequence[Held], likeness: Callable[[Held, Held], Any]
) -> Iterator[tuple[Held, Held | None]]:
    """Each of BEFORE with one of AFTER, the likest first; without one where AFTER has too few."""
    free = dict(enumerate(after))
    every = [(n, m) for n in range(len(before)) for m in free]
    partners: dict[int, Held] = {}
    every.sort(key=lambda pair: likeness(before[pair[0]], after[pair[1]]), reverse=True)
    for n, m in every:
        if n not in partners and m in free:
            partners[n] = free.pop(m)
    for n, one in enumerate(before):
        yield one, partners.get(n)


def _closeness(one: Weights, other: Weights) -> tuple[bool, bool, float]:
    return *_same_place(one.place, other.place), _share(one.tensors, other.tensors)


def _resemblance(one: OptimizerState, other: OptimizerState) -> tuple[float, bool, bool]:
    return _share(one.slots, other.slots), *_same_place(one.place, other.place)


def _same_place(one: str, other: str) -> tuple[bool, bool]:
    return one == other, one.rpartition(".")[2] == other.rpartition(".")[2]


def _share(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    every = one.keys() | other.keys()
    return len(one.keys() & other.keys()) / len(every) if every else 0.0


def _optimizers(
    before: list[OptimizerState],
    after: list[OptimizerState],
    slots: Sides,
    sides: Sides,
    compared: Compared,
) -> None:
    """What optimizers keep of each parameter to ``slots``, and their settings to ``sides``."""
    for old, new in paired(before, after, _resemblance):
        if new is None:
            message = f"AFTER does not save the optimizer state at `{old.place or 'the top'}`"
            sides.lacks(old.place, message)
            continue
        if old.numbered != new.numbered:
            compared.notes.append("optimizer state by number on one side only is not compared")
            continue
        for name in dict.fromkeys((*old.slots, *new.slots)):
            mine, theirs = (
                {f"{name}: {slot}": value for slot, value in one.slots.get(name, {}).items()}
                for one in (old, new)
            )
            slots.compare(mine, theirs)
        for name in old.settings:
            theirs = new.settings.get(name, {})
            kept = {
                key: value for key, value in old.settings[name].items() if key not in BOOKKEEPING
            }
            sides.compare(kept, {key: theirs[key] for key in kept if key in theirs}, f"{name}: ")


def _others(
    before: dict[str, Any], after: dict[str, Any], sides: Sides, compared: Compared
) -> None:
    """What is neither weights nor optimizer state: by place, else by the end of it, else by value."""
    partners = dict(_placed(before, after))
    shared = {place: before[place] for place in partners}
    sides.compare(shared, {place: after[theirs] for place, theirs in partners.items()})
    lost = [place for place in before if place not in partners and before[place] is not None]
    for top, places in _grouped(lost, partners).items():
        more = f" ({len(places)} entries, first `{places[0]}`)" if len(places) > 1 else ""
        sides.lacks(top, f"AFTER does not save `{top}`{more}")
    tensors = sorted(
        place for place in after.keys() - set(partners.values()) if is_tensor(after[place])
    )
    if tensors:
        more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        compared.notes.append(f"only AFTER saves `{tensors[0]}`{more}")


def _placed(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Which place of AFTER holds what a place of BEFORE does; none where AFTER has no such entry."""
    free = {place: place.split(".")[::-1] for place in after if place not in before}
    for place in before:
        if place in after:
            yield place, place
    for place in (place for place in before if place not in after):
        own = place.split(".")[::-1]
        ends = {other: _common(own, theirs) for other, theirs in free.items()}
        best = max(ends.values(), default=0)
        alike = [other for other, end in ends.items() if end == best] if best else list(free)
        same = [other for other in alike if _equal(before[place], after[other])]
        found = next(iter(same), alike[0] if best and len(alike) == 1 else None)
        if found is not None:
            del free[found]
            yield place, found


def _common(one: list[str], other: list[str]) -> int:
    """How many keys two places share at their ends, numbers of lists aside."""
    count = named = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
        named += not mine.isdigit()
    return count if named else 0


def _equal(one: Any, other: Any) -> bool:
    """Whether two entries are the same, and more than a number that many things have."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    if is_tensor(one) or is_tensor(other) or type(one) is not type(other):
        return False
    return bool(one == other)


def _grouped(lost: Sequence[str], kept: Mapping[str, str]) -> dict[str, list[str]]:
    """Lost places under the largest part of a checkpoint of which nothing is left."""
    alive = {place[:end] for place in kept for end in _ends(place)}
    found: dict[str, list[str]] = {}
    for place in lost:
        top = next((place[:end] for end in _ends(place) if place[:end] not in alive), place)
        found.setdefault(top, []).append(place)
    return found


def _ends(place: str) -> list[int]:
    return [n for n, letter in enumerate(place) if letter == "."] + [len(place)]
