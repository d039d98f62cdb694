"""What is in a checkpoint: weights, optimizer state, and the rest, under names that formats share."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fsdp2lint.prove.equality.reading import Later
from fsdp2lint.prove.equality.shards import Each, Layout, Part, cut, flat, unflattened

WRAPPERS = re.compile(r"(?:_fsdp_wrapped_module|_checkpoint_wrapped_module|_orig_mod)\.")
_FLAT_STATE = re.compile(r"state\.(?P<name>.+)\.(?P<slot>[^.]+)")
_FLAT_GROUP = re.compile(r"param_groups\.(?P<name>.+)\.(?P<slot>[^.]+)")

Leaf = Any


@dataclass
class Weights:
    """A model's tensors by clean name, and where in the checkpoint they are."""

    place: str
    tensors: dict[str, Leaf]


@dataclass
class OptimizerState:
    """State and hyper-parameters by parameter."""

    place: str
    slots: dict[str, dict[str, Leaf]]
    settings: dict[str, dict[str, float]]
    numbered: bool = False
    """Whether parameters are known by number only, as ``Optimizer.state_dict`` leaves them."""


@dataclass
class Contents:
    """Everything in a checkpoint, or in several that were written together."""

    weights: list[Weights] = field(default_factory=list)
    optimizers: list[OptimizerState] = field(default_factory=list)
    others: dict[str, Leaf] = field(default_factory=dict)

    def sort(
        self, tree: Any, known: Collection[str], layouts: Mapping[str, Layout] | None = None
    ) -> None:
        """Put the entries of a checkpoint's tree where they belong.

        ``known`` are the model's names, ``layouts`` say by unit what a flat parameter is made of.
        """
        _sort(tree, "", set(known), self)
        for weights in self.weights:
            weights.tensors = unflattened(weights.tensors, layouts or {})

    def add(self, weights: Weights) -> None:
        """Keep weights, with those of other files where a model was cut into several."""
        for held in self.weights:
            if held.place == weights.place and held.tensors.keys().isdisjoint(weights.tensors):
                held.tensors |= weights.tensors
                return
        self.weights.append(weights)


def _sort(node: Any, place: str, known: set[str], into: Contents) -> None:
    if isinstance(node, Mapping):
        if (optimizer := _optimizer(node, place)) is not None:
            into.optimizers.append(optimizer)
            return
        tensors = {key: leaf for key, leaf in node.items() if is_tensor(leaf)}
        if tensors and _is_model(tensors, node, known):
            named = {clean(str(key), known): leaf for key, leaf in tensors.items()}
            into.add(Weights(place, named))
            node = {key: leaf for key, leaf in node.items() if key not in tensors}
        children: Iterator[tuple[Any, Any]] = iter(node.items())
    elif isinstance(node, list | tuple):
        children = iter(enumerate(node))
    else:
        into.others[place] = node
        return
    for key, child in children:
        _sort(child, f"{place}.{key}" if place else str(key), known, into)


def _is_model(tensors: dict[Any, Leaf], node: Mapping[Any, Any], known: set[str]) -> bool:
    if not all(isinstance(key, str) for key in tensors):
        return False
    if any(clean(key, known) in known for key in tensors):
        return True
    return len(tensors) == len(node) and any("." in key for key in tensors)


def clean(name: str, known: Collection[str]) -> str:
    """A name without the prefixes of wrappers; ``module.`` goes when the model knows it without."""
    name = WRAPPERS.sub("", name)
    without = name.removeprefix("module.")
    return without if without in known and name not in known else name


def is_tensor(leaf: Leaf) -> bool:
    """Whether an entry is a tensor, read or not."""
    if isinstance(leaf, Each):
        return any(map(is_tensor, leaf.values))
    return isinstance(leaf, torch.Tensor | Later | Part)


def _optimizer(node: Mapping[Any, Any], place: str) -> OptimizerState | None:
    if {"state", "param_groups"} <= set(node) and isinstance(node["state"], Mapping):
        return _nested(node, place)
    if "state" in node and set(node) <= {"state", "param_groups"} and _is_state(node["state"]):
        return _nested({"param_groups": [], **node}, place)
    names = [key for key in node if isinstance(key, str)]
    if node and len(names) == len(node) and all(key.startswith(_FLAT) for key in names):
        return _flat(node, place)
    return None


_FLAT = ("state.", "param_groups.")


def _is_state(node: Any) -> bool:
    """Whether this is the state by parameter; an entry that is called ``state`` may hold a whole optimizer."""
    if not isinstance(node, Mapping) or "param_groups" in node:
        return False
    return all(isinstance(slots, Mapping) for slots in node.values())


def _nested(node: Mapping[Any, Any], place: str) -> OptimizerState:
    numbered = bool(node["state"]) and all(str(key).isdigit() for key in node["state"])
    slots = {
        WRAPPERS.sub("", str(key)): dict(value)
        for key, value in node["state"].items()
        if isinstance(value, Mapping)
    }
    groups = node["param_groups"]
    groups = list(groups.values()) if isinstance(groups, Mapping) else groups
    settings: dict[str, dict[str, float]] = {}
    for group in groups:
        numbers = _numbers(group)
        for key in group.get("params", ()):
            settings[WRAPPERS.sub("", str(key))] = numbers
    return OptimizerState(place, slots, settings, numbered)


def _flat(node: Mapping[str, Any], place: str) -> OptimizerState:
    slots: dict[str, dict[str, Leaf]] = {}
    settings: dict[str, dict[str, float]] = {}
    for key, leaf in node.items():
        if (match := _FLAT_STATE.fullmatch(key)) is not None:
            slots.setdefault(WRAPPERS.sub("", match["name"]), {})[match["slot"]] = leaf
        elif (match := _FLAT_GROUP.fullmatch(key)) is not None:
            numbers = _numbers({match["slot"]: leaf})
            settings.setdefault(WRAPPERS.sub("", match["name"]), {}).update(numbers)
    return OptimizerState(place, slots, settings)


def _numbers(group: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in group.items():
        if isinstance(value, bool | int | float):
            found[key] = float(value)
        elif isinstance(value, list | tuple) and all(isinstance(v, float | int) for v in value):
            found |= {f"{key}[{n}]": float(v) for n, v in enumerate(value) if key != "params"}
        elif isinstance(value, torch.Tensor) and value.numel() == 1:
            found[key] = float(value)
        elif isinstance(value, Each):
            by_rank = {f"{key} on rank {rank}": each for rank, each in enumerate(value.values)}
            found |= _numbers(by_rank)
    return found


def named(
    state: OptimizerState,
    names: list[str],
    shapes: Mapping[str, torch.Size],
    layouts: Mapping[str, Layout],
) -> bool:
    """Give numbered state the names of the model's parameters in order; False when they do not fit.

    What has a layout in place of a shape is a flat parameter: its state becomes that of what it holds.
    """
    numbers = [str(number) for number in range(len(names))]
    if set(state.slots) | set(state.settings) != set(numbers):
        return False
    slots: dict[str, dict[str, Leaf]] = {}
    settings: dict[str, dict[str, float]] = {}
    for number, name in zip(numbers, names, strict=True):
        mine = state.slots.get(number, {})
        if name in layouts and name not in shapes:
            parts = _cut(mine, name, layouts[name])
        else:
            parts = {name: mine} if name in shapes and _fits(mine, shapes[name]) else None
        if parts is None:
            return False
        slots |= {part: held for part, held in parts.items() if held}
        settings |= {part: state.settings[number] for part in parts if number in state.settings}
    state.slots, state.settings, state.numbered = slots, settings, False
    return True


def _fits(slots: dict[str, Leaf], shape: torch.Size) -> bool:
    sized = [slot for slot in slots.values() if isinstance(slot, torch.Tensor | Part)]
    return all(slot.shape in (torch.Size(), shape) for slot in sized)


def _cut(slots: dict[str, Leaf], unit: str, layout: Layout) -> dict[str, dict[str, Leaf]] | None:
    """The state of each parameter in a flat one; None when it is not as large."""
    parts: dict[str, dict[str, Leaf]] = {
        (f"{unit}.{own}" if unit else own): {} for own, _, _ in layout if own
    }
    for slot, leaf in slots.items():
        if isinstance(leaf, torch.Tensor) and not leaf.dim():
            pieces: Mapping[str, Leaf] = dict.fromkeys(parts, leaf)
        elif (whole := flat(leaf, layout)) is not None:
            pieces = cut(whole, unit, layout)
        else:
            return None
        for part, piece in pieces.items():
            parts[part][slot] = piece
    return parts
