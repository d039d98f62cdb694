"""What a run of a script on several ranks left behind, as plain data that crosses a pipe as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["ended", "raised", "hung", "died"]


@dataclass(frozen=True)
class TensorSeen:
    """One trainable parameter as one rank saw it around the optimizer steps."""

    trained: bool
    sharded: bool
    digest: str


@dataclass(frozen=True)
class Seen:
    """What the watchers of one rank observed."""

    steps: int = 0
    tensors: dict[str, TensorSeen] = field(default_factory=dict)
    units: int = 0
    gathers: int = 0
    reductions: int = 0
    stacked: dict[str, int] = field(default_factory=dict)
    """Repeated blocks by class that one unit gathers at once."""
    written: list[str] = field(default_factory=list)
    """The files that `torch.save` was told to write, from the run's folder."""
    read: list[str] = field(default_factory=list)
    """The files that `torch.load` has read into memory: not mapped."""
    operations: int = 0
    """What the optimizers' steps asked PyTorch to compute."""
    reads: int = 0
    """Numbers that the script's own lines took out of tensors."""
    whole: int = 0
    """Sharded tensors that were gathered outside of the units."""
    held: int = 0
    """The most elements that units held gathered at one time."""
    waits: int = 0
    """Writes of a checkpoint in the main thread between two steps."""
    staged: int = 0
    """Storages that asynchronous saves copied into memory that they had to ask for."""
    ahead: int = 0
    """Units that a forward gathered before their own forward had begun."""
    reduced_in: list[str] = field(default_factory=list)
    """The dtypes in which gradients were reduced."""


@dataclass(frozen=True)
class RankResult:
    """How one rank fared: how it ended, where, what it said and what was seen."""

    rank: int
    outcome: Outcome
    error: str
    where: str
    traceback: str
    stdout: str
    stderr: str
    seen: Seen


@dataclass(frozen=True)
class Left:
    """A checkpoint that the run left in its folder: a pickled file or a DCP directory."""

    name: str
    kind: Literal["file", "checkpoint"]
    share: Fraction
    """The part of its tensors' elements that really is in it."""
    keys: tuple[str, ...]
    error: str
    mixed: bool = False
    """Whether shards were written after the metadata that describes them: by a save that came to no end."""


@dataclass(frozen=True)
class Run:
    """One script run on all its ranks."""

    script: Path
    ranks: list[RankResult]
    left: list[Left]
    seconds: float


def run_from(script: Path, data: dict[str, Any]) -> Run:
    """Rebuild a run from the JSON that the fork server wrote."""
    ranks = [
        RankResult(**{**rank, "seen": _seen_from(rank["seen"])})
        for rank in sorted(data["ranks"], key=lambda rank: int(rank["rank"]))
    ]
    left = [
        Left(**{**item, "share": Fraction(item["share"]), "keys": tuple(item["keys"])})
        for item in data["left"]
    ]
    return Run(script, ranks, left, float(data["seconds"]))


def _seen_from(data: dict[str, Any]) -> Seen:
    tensors = {name: TensorSeen(**tensor) for name, tensor in data.get("tensors", {}).items()}
    return Seen(**{**data, "tensors": tensors})
