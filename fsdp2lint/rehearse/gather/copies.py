"""Copies of the weights that no optimizer trains: averages in dictionaries and lists, in modules of their own.

A container belongs to a model when its tensors are shaped like the model's parameters, in their order: like
this rank's parts of them, or like the whole parameters by name.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fsdp2lint.rehearse.contract.bytes import local

FEWEST = 2
"""Tensors in a container that is looked at: single ones are too often of the same shape by chance."""

Container = dict[Any, Any] | list[Any]


class Copies:
    """The containers of one rank, looked up when an optimizer steps first."""

    def __init__(self) -> None:
        self._containers: list[Container] = []
        self._began: dict[int, float] = {}

    def look(self, roots: Sequence[nn.Module]) -> None:
        """Note the containers that have as many tensors as a model may have parameters."""
        counts = {n for root in roots for n in _counts(root)}
        parameters = [p for root in roots for p in nn.Module.parameters(root)]
        known = {id(tensor) for p in parameters for tensor in (p, p.grad) if tensor is not None}
        ours = set(map(id, _kept_by_optimizers()))
        self._containers = [
            found
            for found in gc.get_objects()
            if type(found) in (dict, list)
            and len(found) in counts
            and id(found) not in ours
            and all(_is_tensor(t) and id(t) not in known for t in _tensors(found))
        ]
        self._began = {id(found): _sum(found) for found in self._containers}

    def _moved(self, container: Container) -> bool:
        return _sum(container) != self._began[id(container)]

    def in_parts(self, root: nn.Module) -> list[tuple[bool, dict[int, torch.Tensor]]]:
        """The containers of this rank's parts of a model: whether it changed since, and its value for every parameter."""
        found = []
        for container in self._containers:
            for parameters in _choices(root):
                held = [local(t.detach()) for t in _tensors(container)]
                if [t.shape for t in held] == [local(p).shape for p in parameters]:
                    by_id = {id(p): t for p, t in zip(parameters, held, strict=True)}
                    found.append((self._moved(container), by_id))
                    break
        return found

    def whole(
        self, shapes: Mapping[str, torch.Size], clean: Callable[[str], str]
    ) -> Iterator[tuple[bool, dict[str, torch.Tensor]]]:
        """The dictionaries of whole parameters by the model's own names, and whether each changed since."""
        for container in self._containers:
            if isinstance(container, dict) and all(isinstance(name, str) for name in container):
                held = {clean(name): tensor for name, tensor in container.items()}
                fits = all(shapes.get(name) == tensor.shape for name, tensor in held.items())
                if fits and not any(isinstance(tensor, DTensor) for tensor in held.values()):
                    yield self._moved(container), held


_TENSORS = ("Tensor", "Parameter", "DTensor")


def _is_tensor(found: object) -> bool:
    """Whether an object is a tensor as scripts hold them; `inspect` has a class ``Parameter`` too."""
    return type(found).__name__ in _TENSORS and issubclass(type(found), torch.Tensor)


def _sum(container: Container) -> float:
    return sum(float(local(tensor.detach()).double().sum()) for tensor in _tensors(container))


def _tensors(container: Container) -> Sequence[Any]:
    return list(container.values()) if isinstance(container, dict) else container


def _choices(root: nn.Module) -> Iterator[list[Any]]:
    every = list(nn.Module.parameters(root))
    yield every
    if (trained := [p for p in every if p.requires_grad]) != every:
        yield trained


def _counts(root: nn.Module) -> set[int]:
    return {len(each) for each in _choices(root) if len(each) >= FEWEST}


def _kept_by_optimizers() -> Iterator[object]:
    """What optimizers keep of each parameter."""
    for found in gc.get_objects():
        if issubclass(type(found), Optimizer):
            yield from found.state.values()
