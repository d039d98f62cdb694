"""Parameters as they were when they were sharded, before each rank kept its own part.

Their fingerprints are made where the values are, without a copy: a real run may shard gigabytes.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fsdp2lint.rehearse.contract.bytes import is_dtensor, local
from fsdp2lint.rehearse.outcome import Spot

_WIDTHS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}


@dataclass(frozen=True)
class Whole:
    """One parameter that was sharded."""

    key: str
    """The number of the call of ``fully_shard`` and that of the parameter in it; the same on all ranks."""
    name: str
    """Its name in the module that was sharded."""
    module: weakref.ref[Any]
    at: Spot | None
    before: int | None
    """The fingerprint of the whole; None for what was a DTensor, whose parts differ by right."""
    part: int | None
    """The fingerprint of what this rank kept."""

    def now(self) -> Any:
        """What its module holds under its name; None where that is no DTensor."""
        module = self.module()
        held = dict(module.named_parameters()).get(self.name) if module is not None else None
        return held if held is not None and is_dtensor(held) else None


def untouched(wholes: list[Whole]) -> list[Whole]:
    """Those whose modules still hold exactly what they kept when they were sharded."""
    held = [(whole, now) for whole in wholes if (now := whole.now()) is not None]
    totals = zip(held, _numbers([_total(now) for _, now in held]), strict=True)
    return [whole for (whole, _), number in totals if number == whole.part]


def total(tensor: Any) -> int | None:
    """The sum of the bits of this rank's part, read as whole numbers: equal where the values are.

    Different values have the same sum by accident only. None where there are no values that can be read
    (meta and fake tensors) or where a subclass holds them in a way of its own.
    """
    return _numbers([_total(tensor)])[0]


def _total(tensor: Any) -> Any:
    """That sum where the tensor is; None without one."""
    import torch

    part = local(tensor)
    if type(part) is not torch.Tensor or part.layout is not torch.strided or part.is_meta:
        return None
    return part.view(getattr(torch, _WIDTHS[part.element_size()])).sum(dtype=torch.int64)


def _numbers(totals: list[Any]) -> list[int | None]:
    """They are brought to the CPU at once: a GPU waits for each transfer."""
    import torch

    kinds = {total.device for total in totals if total is not None}
    found: list[int | None] = [None] * len(totals)
    for device in kinds:
        places = [n for n, one in enumerate(totals) if one is not None and one.device == device]
        for place, number in zip(
            places, torch.stack([totals[n] for n in places]).tolist(), strict=True
        ):
            found[place] = number
    return found


def after_call(original: Any, tell: Callable[[], None]) -> Any:
    """A function that tells when it has returned."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        tell()
        return result

    return call
