"""What a comparison of two runs says, as data that travels through JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["loss", "norm", "rate", "steps", "value", "checkpoint"]


class Difference(msgspec.Struct, frozen=True):
    """One thing that is not the same; of many of a kind, the first."""

    kind: Kind
    message: str
    step: int | None = None
    """Counted from 1."""
    rank: int | None = None
    name: str = ""
    """The parameter, buffer or entry of a checkpoint."""
    before: float | None = None
    after: float | None = None
    relative: float | None = None
    """How far apart, relative to the larger; None when they cannot be subtracted."""
    more: int = 0
    """How many others of this kind differ."""


class Compared(msgspec.Struct):
    """How a number of things compared."""

    what: str
    """``losses``, ``gradient norms``, ``learning rates``, ``parameters``, ``buffers``, or a file."""
    count: int = 0
    identical: int = 0
    """So many are equal bit for bit."""
    relative: float = 0.0
    """The largest relative difference."""
    differences: list[Difference] = []
    notes: list[str] = []

    @property
    def equal(self) -> bool:
        """Whether nothing differs by more than the tolerance."""
        return not self.differences


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint of one run: where it lies now, and what its script calls it."""

    path: str
    name: str
    step: int


class Task(msgspec.Struct, frozen=True):
    """What the process that imports PyTorch is asked to compare."""

    finals: tuple[str, str]
    """The folders of the final values."""
    pairs: list[tuple[list[Checkpoint], list[Checkpoint]]]
    rtol: float
    reach: float = 0.0
    """The sum of the learning rates of all steps: how far Adam can move a parameter."""


def relative(one: float, other: float) -> float:
    """How far two numbers are apart, relative to the larger one."""
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if largest else 0.0
