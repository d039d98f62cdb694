"""What trains beside models and optimizers: schedulers, scalers, samplers, loaders, settings of precision.

A short run may not show that one of them changed: a schedule that ends later, a limit that no norm has
reached yet, TensorFloat-32 on a CPU. Their own numbers do.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from fsdp2lint.rehearse.outcome import Companion

_SAMPLER = ("num_replicas", "rank", "shuffle", "seed", "drop_last", "num_samples")
_LOADER = ("batch_size", "drop_last")
_NUMERICS: dict[str, Callable[[], object]] = {
    "float32 matmul precision": torch.get_float32_matmul_precision,
    "default dtype": torch.get_default_dtype,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
    "cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "bf16 sums of matmul": lambda: (
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    ),
}


class Companions:
    """Those of one rank: looked up when an optimizer steps first, read in the end."""

    def __init__(self) -> None:
        self._held: list[Any] = []
        self._loaders: list[Companion] = []

    def look(self) -> None:
        """Note what there is now."""
        self._held = []
        self._loaders = []
        for found in gc.get_objects():
            kind = type(found)
            if issubclass(kind, LRScheduler | GradScaler):
                self._held.append(found)
            elif issubclass(kind, DistributedSampler):
                self._note("DistributedSampler", found, _SAMPLER)
            elif issubclass(kind, DataLoader):
                self._note("DataLoader", found, _LOADER)

    def _note(self, kind: str, found: Any, names: tuple[str, ...]) -> None:
        # read now: held to the end, a loader would keep its workers
        held = {name: getattr(found, name, None) for name in names}
        self._loaders.append(Companion(kind, dict(_numbers("", held))))

    def read(self) -> list[Companion]:
        """Their numbers."""
        held = [Companion(_kind(one), dict(_state(one))) for one in self._held]
        return sorted([*held, *self._loaders], key=lambda one: (one.kind, str(one.numbers)))


def _kind(found: Any) -> str:
    """FSDP1's scaler is a scaler too."""
    return "GradScaler" if isinstance(found, GradScaler) else type(found).__name__


def _state(found: Any) -> Iterator[tuple[str, float | str]]:
    """What counts of a state: not what a scheduler began with or keeps for itself, which rates show."""
    own = isinstance(found, LRScheduler)
    for key, value in found.state_dict().items():
        if not own or not (key.startswith("_") or key == "base_lrs"):
            yield from _numbers(key, value)


def _numbers(place: str, value: Any) -> Iterator[tuple[str, float | str]]:
    single = isinstance(value, torch.Tensor) and value.numel() == 1
    if single or isinstance(value, bool | int | float):
        number = float(value)
        yield place, number if math.isfinite(number) else str(number)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _numbers(f"{place}.{key}" if place else str(key), one)
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from _numbers(f"{place}[{number}]", one)


def numerics() -> dict[str, str]:
    """PyTorch's global settings of precision and determinism."""
    found = {}
    for name, ask in _NUMERICS.items():
        try:
            found[name] = str(ask())
        except (AttributeError, RuntimeError):  # another release, or its old and new names mixed
            continue
    return found
