"""What optimizers hold, and how much state they will keep.

State is not computed from a list of optimizers: the optimizer's own class steps over a tiny parameter of
the same rank whose dimensions are distinct primes, so that each dimension of its state tensors tells
which of the parameter's it follows.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fsdp2lint.plan import data
from fsdp2lint.plan.data import Group, Option

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
_PLAIN = {"capturable": False, "fused": None, "foreach": False}
"""How a CPU steps; none of it changes what state is kept (``torch/optim/adam.py``)."""

_UNKNOWN = "?"

Size = tuple[tuple[int, ...], int]
"""A state tensor: its dimensions as indices into the parameter's (-1 for one element), bytes a value."""


def read(optimizer: Optimizer, held: Mapping[int, list[str]]) -> data.Optimizer:
    """An optimizer as data; ``held`` names the models' tensors by ``id``."""
    groups = tuple(_group(group, held) for group in optimizer.param_groups)
    return data.Optimizer(type(optimizer).__name__, groups, _state(optimizer))


def _group(group: dict[str, Any], held: Mapping[int, list[str]]) -> Group:
    params = group["params"]
    names = [name for param in params for name in held.get(id(param), ())]
    options = {key: _option(value) for key, value in group.items() if key != "params"}
    known = {key: value for key, value in options.items() if value != _UNKNOWN}
    return Group(known, tuple(names), sum(id(param) not in held for param in params))


def _option(value: Any) -> Option:
    """A setting as data; what is neither number nor text is left out."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
        return float(value)
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, tuple | list) and all(isinstance(part, int | float) for part in value):
        return tuple(map(float, value))
    return _UNKNOWN


def _state(optimizer: Optimizer) -> int | None:
    """Bytes of state on this rank after the first step; None when the class cannot be tried."""
    tried: dict[tuple[int, int, torch.dtype], list[Size]] = {}
    total = 0
    try:
        for number, shape, dtype in _shapes(optimizer):
            key = (number, len(shape), dtype)
            if key not in tried:
                tried[key] = list(_try(optimizer, *key))
            total += sum(_bytes(size, shape) for size in tried[key])
    except Exception:
        # whatever a foreign optimizer may raise over a tensor that is not its own
        return None
    return total


def _shapes(optimizer: Optimizer) -> Iterator[tuple[int, tuple[int, ...], torch.dtype]]:
    """The local parameters that get a gradient: their group, shape and dtype."""
    for number, group in enumerate(optimizer.param_groups):
        for param in group["params"]:
            local = param.to_local() if isinstance(param, DTensor) else param
            if param.requires_grad and local.numel():
                yield number, tuple(local.shape), local.dtype


def _try(optimizer: Optimizer, number: int, dimensions: int, dtype: torch.dtype) -> Iterator[Size]:
    """The state tensors of one step over a tiny parameter."""
    shape = _PRIMES[:dimensions]
    tiny = torch.nn.Parameter(torch.ones(shape, dtype=dtype))
    tiny.grad = torch.full_like(tiny, 0.5)
    twin = copy.copy(optimizer)
    vars(twin).pop("step", None)  # a scheduler's wrapper steps the original
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(twin, hooks, {})
    settings = optimizer.param_groups[number]
    plain = {key: value for key, value in _PLAIN.items() if key in settings}
    twin.state = defaultdict(dict)
    twin.param_groups = [{**settings, **plain, "params": [tiny]}]
    twin.step()
    for value in twin.state[tiny].values():
        if isinstance(value, torch.Tensor):
            places = (_PRIMES.index(n) if n in shape else -n for n in value.shape)
            yield tuple(places), value.element_size()


def _bytes(size: Size, shape: tuple[int, ...]) -> int:
    places, width = size
    return math.prod(shape[place] if place >= 0 else -place for place in places) * width
