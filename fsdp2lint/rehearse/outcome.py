"""What comes back from a rank, as data that travels through JSON."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

How = Literal["running", "ended", "stopped", "raised", "lost", "died", "hung", "busy"]
"""``running``: killed before it could say more · ``ended``: the script came to its end · ``stopped``:
after the wanted number of steps · ``raised``: with an error of its own · ``lost``: a collective failed
because another rank was not there · ``died``: of a signal · ``hung``: it waited until it was killed ·
``busy``: it was at work when the time was over."""

Device = Literal["cpu", "cuda"]


class MadeUp(msgspec.Struct, frozen=True):
    """What is made up for a script, because this machine lacks it."""

    missing: bool = False
    """Data sets, tokenizers, pretrained weights, trackers and packages that are not here."""
    modules: tuple[str, ...] = ()
    """More missing packages that do nothing."""
    full_size: bool = False
    """Whether pretrained models that are made up have the size that their configuration says by itself."""
    small: bool = False
    """Whether models are built small where a configuration says their size."""


class Request(msgspec.Struct, frozen=True):
    """What to run, and how long."""

    target: str
    scratch: str
    module: bool = False
    arguments: tuple[str, ...] = ()
    nproc: int = 2
    steps: int | None = None
    timeout: float = 300.0
    patches: tuple[str, ...] = ()
    device: Device = "cpu"
    """``cuda`` runs the script as it is, without the stand-in."""
    made_up: MadeUp = MadeUp()
    folder: str = ""
    """Where the ranks work; this process's own working folder when empty."""
    root: str = ""
    """Where a module is imported from, when that is not the working folder."""
    seed: int | None = None
    """What every rank's random numbers start from; left alone when None."""
    seeds_apart: bool = False
    """Whether PyTorch starts from another number on each rank, too."""
    gather: bool = False
    """Whether final values and what was saved are kept for a comparison."""
    rounded: bool = False
    """Whether the last bits of gradients are others before each step: how far rounding alone leads."""
    environment: dict[str, str] = {}
    """What a launcher sets for its ranks."""


class Spot(msgspec.Struct, frozen=True, order=True):
    """A line of a file."""

    file: str
    line: int


class Frame(msgspec.Struct, frozen=True):
    """One call on a stack."""

    at: Spot
    function: str


class Violation(msgspec.Struct, frozen=True):
    """A break of the contract that was seen to happen."""

    code: str
    message: str
    at: Spot | None = None
    because: tuple[tuple[Spot, str], ...] = ()


class Meeting(msgspec.Struct, frozen=True):
    """One collective of a unit of ``fully_shard``, before this rank took part in it."""

    kind: str
    """``gathers`` or ``reduces``."""
    group: str
    names: tuple[str, ...]
    at: Spot | None = None


class Digest(msgspec.Struct, frozen=True):
    """A tensor in a few numbers: equal tensors have equal ones, and others hardly ever."""

    shape: tuple[int, ...]
    exact: int | None = None
    """A checksum, of whole numbers."""
    weighted: float | None = None
    """Of other numbers: their sum, each weighted by its place; None when it is not finite."""
    norm: float | None = None


class Inner(msgspec.Struct, frozen=True, array_like=True):
    """What a module inside of a call returned: the first tensor of it in a few numbers."""

    name: str
    """Empty for the module that was called."""
    kind: str
    dtype: str
    weighted: float | None = None
    norm: float | None = None
    at: Spot | None = None


class Exchange(msgspec.Struct, frozen=True):
    """One collective that the script calls itself."""

    call: str
    reduces: str
    """By which operation; empty for those that reduce nothing."""
    what: str
    """The type and shape of the tensor; empty for objects."""
    ranks: tuple[int, ...]
    at: Spot | None = None


class Call(msgspec.Struct, frozen=True):
    """One call of an outermost module."""

    given: list[Digest] = []
    """The tensors among its arguments, where the module has parameters."""
    made: list[Digest] = []
    """The tensors that it returned, where no gradient was wanted of them."""
    evaluates: bool = False
    """Whether it was made without gradients."""
    at: Spot | None = None
    training: int = 0
    """How many of its modules without children were in training mode."""
    parts: int = 0
    """How many there are."""
    inside: list[Inner] = []
    """What the modules inside of it returned, in order; of the first steps."""


class Clip(msgspec.Struct, frozen=True):
    """One call that clips gradients."""

    at: Spot | None
    limit: float | None
    squares: float | None
    """This rank's part of the squared norm before the call; the parts of all ranks add up."""
    order: str = "2"
    """Which norm is clipped, ``value`` where each value is; empty where that is not known. A text: JSON has no infinity."""


class Companion(msgspec.Struct, frozen=True):
    """A scheduler, scaler, sampler or loader and its numbers."""

    kind: str
    numbers: dict[str, float | str]
    """Those that JSON does not know, infinity for example, as texts."""


class Step(msgspec.Struct):
    """One optimizer step and what led to it: losses of ``backward`` calls, calls of modules, the gradients.

    ``squares`` is this rank's part of the squared gradient norm; the parts of all ranks add up.
    """

    losses: list[float | None] = []
    squares: float | None = 0.0
    rates: list[float] = []
    """The learning rate of each parameter group."""
    calls: list[Call] = []
    clips: list[Clip] = []
    gradients: dict[str, float] = {}
    """This rank's part of each parameter's squared norm, before anything is clipped; of the first steps."""
    lines: dict[str, Spot] = {}
    """Where the script made the step and first called ``backward`` for it: ``step``, ``loss``."""
    printed: tuple[int, int] = (0, 0)
    """How long standard output and standard error were when the step was made."""
    exchanges: list[Exchange] = []


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint that a rank has written."""

    path: str
    step: int
    """How many optimizer steps had been made."""
    kind: Literal["torch", "dcp", "safetensors"]


class RankReport(msgspec.Struct):
    """How one rank fared."""

    rank: int
    how: How = "running"
    error: str = ""
    frames: list[Frame] = []
    waits_in: str = ""
    """The collective in which it waited until it was killed."""
    steps: list[Step] = []
    began: tuple[int, int] = (0, 0)
    """How much was printed when ``backward`` was called first."""
    rest: Step = msgspec.field(default_factory=Step)
    """What came after the last step."""
    replaced: dict[str, int] = {}
    violations: list[Violation] = []
    saved: list[Saved] = []
    """Filled when the request asks to gather."""
    clipped: bool = False
    """Whether gradients were clipped by norm."""
    seeded: bool = False
    """Whether the script seeded PyTorch itself."""
    synced: bool | None = None
    """Whether every wrapper of FSDP1 brought the weights of rank 0 to all ranks; None where there is none."""
    companions: list[Companion] = []
    """What trains beside models and optimizers, as it was in the end."""
    numerics: dict[str, str] = {}
    """PyTorch's global settings of precision and determinism at the first ``backward``."""
    meetings: list[Meeting] = []
    """The collectives of its units, in order; read from what it wrote down as it ran."""
    facts: dict[str, Any] = {}
    """What the checks noted, by check; compared across ranks when all have reported."""

    @property
    def done(self) -> bool:
        """Whether the rank ran as far as it should."""
        return self.how in ("ended", "stopped")


def packed(thing: msgspec.Struct) -> bytes:
    """The JSON of a request or a report; numbers that JSON does not know become null."""
    return msgspec.json.encode(thing)


def request_from(raw: bytes) -> Request:
    """The request in some JSON."""
    return msgspec.json.decode(raw, type=Request)


def report_from(raw: bytes) -> RankReport:
    """The report in some JSON."""
    return msgspec.json.decode(raw, type=RankReport)
