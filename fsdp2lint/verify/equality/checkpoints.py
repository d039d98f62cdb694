"""The checkpoints that two runs wrote, entry by entry, whatever their format."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from fsdp2lint.verify.equality.contents import Contents, OptimizerState, Weights, is_tensor, named
from fsdp2lint.verify.equality.reading import Unreadable, read
from fsdp2lint.verify.equality.results import Checkpoint, Compared, Difference
from fsdp2lint.verify.equality.shards import Layout, merged
from fsdp2lint.verify.equality.tensors import Sides, Slack

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
) -> Compared:
    """Weights by clean name, optimizer state by parameter, and numbers that both have.

    ``names`` are the parameters of each model in order, to give numbered optimizer state its names;
    ``layouts`` say what the flat parameters of FSDP1 are made of.
    """
    compared = Compared(_title(before, after))
    if not before:  # a conversion, or a copy: no less than BEFORE has
        compared.notes.append(f"only AFTER writes it, after step {after[0].step}")
        return compared
    if not after:
        message = f"AFTER writes no checkpoint after step {before[0].step}, BEFORE does"
        compared.differences.append(Difference("checkpoint", message, before[0].step))
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
    _weights(old.weights, new.weights, held, compared)
    held.close()
    sides = Sides(compared, "checkpoint", rtol)
    for state in (*old.optimizers, *new.optimizers):
        if state.numbered and not any(named(state, each, shapes, layouts or {}) for each in names):
            text = (
                f"the optimizer state at `{state.place}` has numbers that fit no model's parameters"
            )
            compared.notes.append(text)
    _optimizers(old.optimizers, new.optimizers, sides, compared)
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


def _weights(before: list[Weights], after: list[Weights], sides: Sides, compared: Compared) -> None:
    left = list(after)
    for weights in before:
        if not left:
            compared.notes.append(f"AFTER has no weights beside `{weights.place or 'the file'}`")
            break
        partner = max(left, key=lambda other: _closeness(weights, other))
        left.remove(partner)
        several = f"{weights.place}." if len(before) > 1 and weights.place else ""
        sides.compare(weights.tensors, partner.tensors, several)


def _closeness(one: Weights, other: Weights) -> tuple[bool, bool, float]:
    every = one.tensors.keys() | other.tensors.keys()
    share = len(one.tensors.keys() & other.tensors.keys()) / len(every) if every else 0.0
    last = one.place.rpartition(".")[2] == other.place.rpartition(".")[2]
    return one.place == other.place, last, share


def _optimizers(
    before: list[OptimizerState], after: list[OptimizerState], sides: Sides, compared: Compared
) -> None:
    if len(before) != len(after):
        compared.notes.append(
            f"BEFORE saves the state of {len(before)} optimizers here, AFTER of {len(after)}"
        )
    for old, new in zip(before, after, strict=False):
        if old.numbered != new.numbered:
            compared.notes.append("optimizer state by number on one side only is not compared")
            continue
        for name in dict.fromkeys((*old.slots, *new.slots)):
            sides.compare(old.slots.get(name, {}), new.slots.get(name, {}), f"{name}: ")
        for name in old.settings:
            shared = old.settings[name].keys() & new.settings.get(name, {}).keys()
            for key in sorted(shared - BOOKKEEPING):
                one = {key: old.settings[name][key]}, {key: new.settings[name][key]}
                sides.compare(*one, f"{name}: ")


def _others(
    before: dict[str, Any], after: dict[str, Any], sides: Sides, compared: Compared
) -> None:
    shared = [place for place in before if place in after]
    sides.compare({p: before[p] for p in shared}, {p: after[p] for p in shared})
    for side, only in (("BEFORE", before.keys() - after), ("AFTER", after.keys() - before)):
        tensors = sorted(place for place in only if is_tensor((before | after)[place]))
        if tensors:
            compared.notes.append(f"only {side} saves `{tensors[0]}`" + _more(tensors))


def _more(places: list[str]) -> str:
    return f" and {len(places) - 1} more" if len(places) > 1 else ""
