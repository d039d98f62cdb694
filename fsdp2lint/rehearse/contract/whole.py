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

    def untouched(self) -> bool:
        """Whether the module still holds exactly what it kept then."""
        module = self.module()
        now = dict(module.named_parameters()).get(self.name) if module is not None else None
        return now is not None and is_dtensor(now) and total(now) == self.part


def total(tensor: Any) -> int | None:
    """The sum of the bits of this rank's part, read as whole numbers: equal where the values are.

    Different values have the same sum by accident only. None where there are no values that can be read
    (meta and fake tensors) or where a subclass holds them in a way of its own.
    """
    import torch

    part = local(tensor)
    if type(part) is not torch.Tensor or part.layout is not torch.strided or part.is_meta:
        return None
    return int(part.view(getattr(torch, _WIDTHS[part.element_size()])).sum(dtype=torch.int64))


def after_call(original: Any, tell: Callable[[], None]) -> Any:
    """A function that tells when it has returned."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        tell()
        return result

    return call
