"""Numbers are read from whole tensors: a ``Partial`` one holds this rank's share only (FSDP218).

``.item()`` and its kin read the local part without a word (torch 2.13). Nothing is said of a function
that adds up the shares itself, by a collective of its own after it read them.
"""

from __future__ import annotations

import functools
import sys
from types import CodeType, FrameType
from typing import Any

from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.watch import replace_everywhere
from fsdp2lint.rehearse.outcome import Violation
from fsdp2lint.rehearse.stacks import here, own

_SUMMING = ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "all_gather_object")
_READERS = ("item", "tolist", "__float__", "__int__", "__format__")


class PartialValues(Check):
    """Listens to the methods that make Python numbers."""

    def install(self) -> None:
        """Replace them on ``DTensor`` alone."""
        from torch.distributed import distributed_c10d
        from torch.distributed.tensor import DTensor

        self._read: dict[CodeType, list[Violation]] = {}
        for name in _READERS:
            setattr(DTensor, name, self._reading(getattr(DTensor, name), name))
        for name in _SUMMING:
            replace_everywhere(getattr(distributed_c10d, name), self._summing)

    def at_end(self, how: str) -> None:
        """Say what was read and not added up."""
        for violations in self._read.values():
            for violation in violations:
                self.say(violation)

    def _reading(self, original: Any, name: str) -> Any:
        @functools.wraps(original)
        def read(tensor: Any, *args: Any) -> Any:
            partial = [p for p in tensor.placements if p.is_partial()]
            reader = _caller()
            if partial and own(reader.co_filename):
                how = f".{name}()" if not name.startswith("_") else f"`{name.strip('_')}`"
                message = (
                    f"{how} reads this rank's share of a {partial[0]} value: "
                    "the whole one is in `.full_tensor()`"
                )
                violation = Violation("FSDP218", message, here())
                if violation not in self._read.setdefault(reader, []):
                    self._read[reader].append(violation)
            return original(tensor, *args)

        return read

    def _summing(self, original: Any) -> Any:
        @functools.wraps(original)
        def summed(*args: Any, **kwargs: Any) -> Any:
            self._read.pop(_caller(), None)
            return original(*args, **kwargs)

        return summed


def _caller() -> CodeType:
    """Who called the function that asks, past a guard that stands before it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    assert frame is not None
    return frame.f_code
