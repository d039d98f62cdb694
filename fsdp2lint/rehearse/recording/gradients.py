"""This rank's part of each parameter's squared gradient norm, so that the first that differs has a name.

A flat parameter of FSDP1 is cut into what it holds: ``_shard_param_infos`` says which stretch of this rank's
shard belongs to which parameter (``torch/distributed/fsdp/_flat_param.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from fsdp2lint.rehearse.contract.bytes import local
from fsdp2lint.rehearse.gather import clean, models_of

STEPS = 64
"""Steps of which the gradients are noted one by one."""

Piece = tuple[str, slice]


class Gradients:
    """Those of one rank; models are looked up when they are asked for first."""

    def __init__(self, weight: Callable[[Any], float]) -> None:
        self._weight = weight
        self._pieces: dict[int, list[Piece]] = {}

    def squares(self, parameters: Iterable[Any]) -> dict[str, float]:
        """By the names of parameters that have a gradient; the parts of all ranks add up."""
        found: dict[str, float] = {}
        held = [p for p in parameters if p.grad is not None and not p.grad.is_sparse]
        if any(id(parameter) not in self._pieces for parameter in held):
            models = models_of({id(parameter) for parameter in held})
            self._pieces |= {id(p): pieces for p, pieces in _named_pieces(models)}
        with torch.no_grad():
            for parameter in held:
                squares = local(parameter.grad.detach()).double().square()
                for name, where in self._pieces.get(id(parameter), ()):
                    part = squares if where == _WHOLE else squares.reshape(-1)[where]
                    square = float(part.sum()) * self._weight(parameter)
                    found[name] = found.get(name, 0.0) + square
        return found


_ULPS = 8.0
"""So many units in the last place: sums over many ranks are rounded several times."""


def round_otherwise(parameters: Iterable[Any], step: int) -> None:
    """Change the last bits of gradients: the same ones on ranks that hold the same part."""
    with torch.no_grad():
        for number, parameter in enumerate(parameters):
            if parameter.grad is not None and parameter.grad.is_floating_point():
                gradient = local(parameter.grad)
                if gradient.is_sparse:
                    continue
                chance = torch.Generator().manual_seed(step * 100_003 + number)
                drawn = 2 * torch.rand(gradient.shape, generator=chance, dtype=torch.float64) - 1
                off = drawn * _ULPS * torch.finfo(gradient.dtype).eps
                gradient.mul_((1 + off).to(gradient.device))


_WHOLE = slice(None)


def _named_pieces(roots: Sequence[nn.Module]) -> Iterator[tuple[Any, list[Piece]]]:
    for root in roots:
        for name, module in root.named_modules():
            handle = getattr(module, "_handle", None)
            if isinstance(module, FullyShardedDataParallel) and handle is not None:
                yield handle.flat_param, list(_flat(root, name, handle.flat_param))
        for name, parameter in nn.Module.named_parameters(root):
            if not hasattr(parameter, "_fqns"):
                yield parameter, [(clean(root, name), _WHOLE)]


def _flat(root: nn.Module, unit: str, flat: Any) -> Iterator[Piece]:
    prefix = clean(root, unit) if unit else ""
    for fqn, info in zip(flat._fqns, getattr(flat, "_shard_param_infos", ()), strict=False):
        if info.in_shard:
            name = clean(root, fqn)
            end = info.offset_in_shard + info.numel_in_shard
            yield f"{prefix}.{name}" if prefix else name, slice(info.offset_in_shard, end)
