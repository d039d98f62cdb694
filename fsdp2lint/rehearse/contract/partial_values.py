"""Numbers are read from whole tensors: a ``Partial`` one holds this rank's share only (FSDP218).

``.item()`` and its kin read the local part without a word (torch 2.13), of the tensor itself and of what its ``to_local()``
gives. Not reported: a function
that adds up the shares itself, by a collective of its own after it read them: before the next optimizer step, or of a tensor
that holds the number.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.watch import replace_everywhere
from fsdp2lint.rehearse.outcome import Spot, Violation
from fsdp2lint.rehearse.stacks import here, own

_SUMMING = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_object")
_READERS = ("item", "tolist", "__float__", "__int__", "__format__")
_SHARE = "_fsdp2lint_share"
MANY = 64
SINGLE = 1e-6


@dataclass
class _Read:
    """A number that was read of a share."""

    violation: Violation
    number: float | None
    is_old: bool = False
    """Whether an optimizer has stepped since."""

    def is_in(self, numbers: set[float]) -> bool:
        """Whether it, or its square as of a norm, is among these, in single precision."""
        if self.number is None:
            return False
        return any(
            abs(one - mine) <= SINGLE * abs(mine)
            for one in numbers
            for mine in (self.number, self.number**2)
        )


class PartialValues(Check):
    """Listens to the methods that make Python numbers."""

    def install(self) -> None:
        """Replace them on ``DTensor`` alone."""
        import torch
        from torch.distributed import distributed_c10d
        from torch.distributed.tensor import DTensor

        self._read: dict[CodeType, list[_Read]] = {}
        for name in _READERS:
            for kind in (DTensor, torch.Tensor) if self.watch.thorough else (DTensor,):
                setattr(kind, name, self._reading(getattr(kind, name), name))
        setattr(DTensor, "to_local", _sharing(DTensor.to_local))  # noqa: B010
        for name in _SUMMING:
            replace_everywhere(getattr(distributed_c10d, name), self._summing)

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """What was read before is added up by now, or by a collective of the number."""
        for read in self._all():
            read.is_old = True

    def at_end(self, how: str) -> None:
        """Say what was read and not added up."""
        for read in self._all():
            self.say(read.violation)

    def _all(self) -> list[_Read]:
        return [one for every in self._read.values() for one in every]

    def _reading(self, original: Any, name: str) -> Any:
        @functools.wraps(original)
        def read(tensor: Any, *args: Any) -> Any:
            partial = getattr(tensor, _SHARE, None) or _partial(tensor)
            reader = _caller() if partial else None
            if reader is not None and own(reader.co_filename):
                how = f".{name}()" if not name.startswith("_") else f"`{name.strip('_')}`"
                message = (
                    f"{how} reads this rank's share of a {partial} value: "
                    "the whole one is in `.full_tensor()`"
                )
                result = original(tensor, *args)
                number = result if isinstance(result, float) else None
                read = _Read(Violation("FSDP218", message, here()), number)
                same = self._read.setdefault(reader, [])
                if len(same) < MANY:
                    same.append(read)
                return result
            return original(tensor, *args)

        return read

    def _summing(self, original: Any) -> Any:
        @functools.wraps(original)
        def summed(*args: Any, **kwargs: Any) -> Any:
            numbers = set()
            for tensor in args:
                getattr(tensor, "__dict__", {}).pop(_SHARE, None)
                numbers |= _numbers(tensor)
            reader = _caller()
            if same := self._read.get(reader):
                self._read[reader] = [r for r in same if r.is_old and not r.is_in(numbers)]
            return original(*args, **kwargs)

        return summed


def _numbers(tensor: Any) -> set[float]:
    """What a small tensor on the CPU holds."""
    if not hasattr(tensor, "numel") or tensor.device.type != "cpu" or tensor.numel() > MANY:
        return set()
    return {float(one) for one in tensor.detach().reshape(-1).double().numpy()}


def _partial(tensor: Any) -> str:
    """The placement by which a tensor is this rank's share; empty for a whole or sharded one."""
    return next((str(p) for p in getattr(tensor, "placements", ()) if p.is_partial()), "")


def _sharing(to_local: Any) -> Any:
    """The share of a value remembers that it is one."""

    @functools.wraps(to_local)
    def shared(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        local = to_local(tensor, *args, **kwargs)
        if partial := _partial(tensor):
            setattr(local, _SHARE, partial)
        return local

    return shared


def _caller() -> CodeType:
    """Who called the function that asks, past a guard that is before it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    assert frame is not None
    return frame.f_code
