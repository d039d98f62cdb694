"""What a comparison of two runs says, as data that travels through JSON."""

from __future__ import annotations

from typing import Literal

import msgspec

from fsdp2lint.rehearse.outcome import Spot

BUILD = "build.json"
"""The file beside the final values with the :class:`Build` of the models."""

UNITS = "units.json"
"""The file of a run with how its models are sharded."""

COPY = "copy"
"""What the names of files begin with that hold copies of the weights which no optimizer trains."""

Kind = Literal[
    "numerics",
    "setting",
    "data",
    "loss",
    "gradient",
    "clipping",
    "norm",
    "rate",
    "steps",
    "evaluation",
    "printed",
    "companion",
    "value",
    "optimizer",
    "checkpoint",
    "file",
]


class Difference(msgspec.Struct, frozen=True):
    """One thing that is not the same; of many of a kind, the first."""

    kind: Kind
    message: str
    step: int | None = None
    """Counted from 1."""
    rank: int | None = None
    name: str = ""
    """The parameter, buffer, entry of a checkpoint, or file."""
    lines: tuple[Spot | None, Spot | None] = (None, None)
    """Where BEFORE and AFTER do what differs."""
    missing: bool = False
    """Whether BEFORE has it and AFTER does not."""
    before: float | None = None
    after: float | None = None
    relative: float | None = None
    """How far apart, relative to the larger; None when they cannot be subtracted."""
    more: int = 0
    """How many others of this kind differ."""
    causes: tuple[str, ...] = ()
    """What of the programs explains it: the module where it begins, how parameters are computed, a collective."""
    backward: int | None = None
    """Which call of ``backward`` of the step it belongs to, counted from 0; None for what follows the last."""


class Compared(msgspec.Struct):
    """How a number of things compared."""

    what: str
    """``losses``, ``gradient norms``, ``batches``, ``parameters``, … or a file."""
    count: int = 0
    identical: int = 0
    """So many are equal bit for bit."""
    relative: float = 0.0
    """The largest relative difference."""
    differences: list[Difference] = []
    notes: list[str] = []
    unread: int = 0
    """How many checkpoints BEFORE wrote that nobody could read, and so compare."""
    unproven: str = ""
    """Why equal values prove nothing: they are no numbers in either program."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs by more than the tolerance."""
        return not self.differences


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint of one run: where it lies now, and what its script calls it."""

    path: str
    name: str
    step: int
    parts: tuple[str, ...] = ()
    """Where what the other ranks wrote lies, each into a file of its own."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All files or folders of it, in the order of ranks."""
        return (self.path, *self.parts)


class Build(msgspec.Struct):
    """How the parameters of a run's models are kept."""

    orders: list[list[str]] = []
    """Of each model the names of its parameters as ``parameters()`` gives them, each once."""
    layouts: dict[str, list[tuple[str, tuple[int, ...], int]]] = {}
    """Of each flat parameter by its unit, piece after piece: the name, empty for padding, shape and length."""
    settings: list[dict[str, dict[str, float]]] = []
    """Of each optimizer, by the parameter: the settings of its group, the group's number, steps made."""
    began: list[dict[str, dict[str, float]]] = []
    """The same when each stepped first."""


class Task(msgspec.Struct, frozen=True):
    """What the process that imports PyTorch is asked to compare."""

    finals: tuple[str, str]
    """The folders of the final values."""
    pairs: list[tuple[list[Checkpoint], list[Checkpoint]]]
    rtol: float
    noise: float = 0.0
    """How far values may be apart by rounding alone."""
    reach: float = 0.0
    """The sum of the learning rates of all steps: how far Adam can move a parameter."""


def relative(one: float, other: float) -> float:
    """How far two numbers are apart, relative to the larger one."""
    largest = max(abs(one), abs(other))
    return abs(one - other) / largest if largest else 0.0
