"""What happens during a run. Each event says it in plain words too, for ``fsdp2lint trace`` and the tests.

Every event knows where (``at``), when (``order``, counted along the walk), under which ``guards``, through
which ``calls`` (outermost first) and within which context managers (``within``) it happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp2lint.model.basic_events import Assigned as Assigned
from fsdp2lint.model.basic_events import Augmented as Augmented
from fsdp2lint.model.basic_events import Called as Called
from fsdp2lint.model.basic_events import Escaped as Escaped
from fsdp2lint.model.basic_events import Event as Event
from fsdp2lint.model.basic_events import Exited as Exited
from fsdp2lint.model.basic_events import Filled as Filled
from fsdp2lint.model.basic_events import Iterated as Iterated
from fsdp2lint.model.basic_events import Moment as Moment
from fsdp2lint.model.basic_events import Operated as Operated
from fsdp2lint.model.basic_events import Placed as Placed
from fsdp2lint.model.basic_events import Read as Read
from fsdp2lint.model.basic_events import Returned as Returned
from fsdp2lint.model.basic_events import Written as Written

if TYPE_CHECKING:
    from fsdp2lint.model.values import Future, Optimizer, Parameters, StateDict, Value


@dataclass(slots=True, eq=False)
class Sharded(Event):
    """``fully_shard`` was applied to ``modules`` (several when a list was given)."""

    modules: tuple[Value, ...]
    options: dict[str, Value]
    open: bool
    """Whether options of unknown content were passed."""

    @property
    def module(self) -> Value:
        """The module, or the first of the list."""
        return self.modules[0]

    def words(self) -> str:
        return f"sharded {' and '.join(m.words() for m in self.modules)}"


@dataclass(slots=True, eq=False)
class Wrapping(Event):
    """A wrapper was put around a module: ``by`` is ``fsdp1``, ``ddp``, ``compile``, ``checkpoint``."""

    module: Value
    by: str
    result: Value
    options: dict[str, Value]
    open: bool = False
    """Whether it may be given other options, too."""

    def words(self) -> str:
        return f"wrapped {self.module.words()} by {self.by}"


@dataclass(slots=True, eq=False)
class OptimizerBuilt(Event):
    """An optimizer took parameters."""

    optimizer: Optimizer
    over: tuple[Parameters, ...]

    def words(self) -> str:
        over = " and ".join(dict.fromkeys(p.words() for p in self.over)) or "unknown parameters"
        return f"optimizer built over {over}"


@dataclass(slots=True, eq=False)
class OptimizerReceived(Event):
    """A function that no resolved code calls is given an optimizer: it was built before.

    ``beside`` are the other arguments.
    """

    optimizer: Optimizer
    beside: tuple[Value, ...]

    def words(self) -> str:
        return f"{self.optimizer.words()} is handed over, built before"


@dataclass(slots=True, eq=False)
class ParametersUsed(Event):
    """Parameters that had been taken earlier were used: ``by`` says what for."""

    parameters: tuple[Parameters, ...]
    by: str

    def words(self) -> str:
        return f"{self.by} used {' and '.join(dict.fromkeys(p.words() for p in self.parameters))}"


@dataclass(slots=True, eq=False)
class Forward(Event):
    """A module computed: ``how`` is ``call`` for ``model(x)``, else the method's name."""

    module: Value
    how: str

    def words(self) -> str:
        return f"forward of {self.module.words()}" + (
            "" if self.how == "call" else f" through .{self.how}"
        )


@dataclass(slots=True, eq=False)
class Backward(Event):
    """``backward()`` ran."""

    of: Value

    def words(self) -> str:
        return "backward"


@dataclass(slots=True, eq=False)
class Stepped(Event):
    """An optimizer made its step."""

    optimizer: Value

    def words(self) -> str:
        return f"stepped {self.optimizer.words()}"


@dataclass(slots=True, eq=False)
class Clipped(Event):
    """Gradients were clipped: over ``parameters``, or by the ``module``'s own method."""

    parameters: tuple[Parameters, ...]
    module: Value | None

    def words(self) -> str:
        if self.module is not None:
            return f"clipped by {self.module.words()}.clip_grad_norm_"
        over = " and ".join(dict.fromkeys(p.words() for p in self.parameters))
        return f"clipped {over or 'unknown parameters'}"


@dataclass(slots=True, eq=False)
class SyncSwitched(Event):
    """``set_requires_gradient_sync`` of a module; ``on`` is None when the value is not known."""

    module: Value
    on: bool | None

    def words(self) -> str:
        side = {True: "on", False: "off", None: "on or off"}[self.on]
        return f"gradient sync of {self.module.words()} switched {side}"


@dataclass(slots=True, eq=False)
class SyncPaused(Event):
    """``no_sync()`` of a module was called."""

    module: Value

    def words(self) -> str:
        return f"no_sync of {self.module.words()}"


@dataclass(slots=True, eq=False)
class Registered(Event):
    """``register_fsdp_forward_method``; ``method`` is None when its name is not known."""

    module: Value
    method: str | None

    def words(self) -> str:
        return f"registered {self.method or 'a method'} of {self.module.words()}"


@dataclass(slots=True, eq=False)
class Resharded(Event):
    """``reshard()`` of a module."""

    module: Value

    def words(self) -> str:
        return f"resharded {self.module.words()}"


@dataclass(slots=True, eq=False)
class Unsharded(Event):
    """``unshard()`` of a module."""

    module: Value

    def words(self) -> str:
        return f"unsharded {self.module.words()}"


@dataclass(slots=True, eq=False)
class StateDictTaken(Event):
    """A state dict was made."""

    state: StateDict

    def words(self) -> str:
        kind = {"model": "state dict", "optimizer": "optimizer state", "both": "state"}[
            self.state.kind
        ]
        full = {True: "full ", False: "sharded ", None: ""}[self.state.full]
        return f"{full}{kind} of {self.state.of.words()} taken"


@dataclass(slots=True, eq=False)
class Saved(Event):
    """Something was written: ``via`` is the canonical name of the call."""

    what: Value
    via: str
    path: Value | None
    states: tuple[StateDict, ...] = ()
    """The state dicts inside what was saved."""
    future: Future | None = None

    def words(self) -> str:
        what = " and ".join(dict.fromkeys(s.words() for s in self.states)) or self.what.words()
        return f"saved {what} with {self.via.rsplit('.', 1)[-1]}"


@dataclass(slots=True, eq=False)
class Loaded(Event):
    """Something was read: ``via`` the call, ``into`` what ``dcp.load`` fills, ``states`` inside it."""

    via: str
    into: Value | None
    path: Value | None
    result: Value
    states: tuple[StateDict, ...] = ()

    def words(self) -> str:
        into = " and ".join(dict.fromkeys(s.words() for s in self.states))
        return f"loaded with {self.via.rsplit('.', 1)[-1]}" + (f" into {into}" if into else "")


@dataclass(slots=True, eq=False)
class Restored(Event):
    """A state was put into a model or an optimizer: ``via`` is the method's or function's name."""

    into: Value
    state: Value
    via: str
    kind: str
    """``model``, ``optimizer`` or ``both``."""

    def words(self) -> str:
        return f"restored {self.into.words()} through {self.via}"


@dataclass(slots=True, eq=False)
class Collective(Event):
    """A call that all ranks must make: ``about`` is what it communicates."""

    name: str
    about: Value | None

    def words(self) -> str:
        return f"collective {self.name.rpartition('.')[2]}"


@dataclass(slots=True, eq=False)
class GroupStarted(Event):
    """The process group was initialised; ``backend`` when it is known."""

    backend: str | None

    def words(self) -> str:
        return "process group started" + (f" on {self.backend}" if self.backend else "")


@dataclass(slots=True, eq=False)
class SettingsOpen(Event):
    """A framework trains here, and nothing that is resolved says by which settings of FSDP: ``what`` is missing, and ``why``."""

    what: str
    why: str

    def words(self) -> str:
        return f"trained, {self.what} not known: {self.why}"


@dataclass(slots=True, eq=False)
class AskedOldVersion(Event):
    """A framework is asked for FSDP1."""

    framework: str

    def words(self) -> str:
        return f"{self.framework} asked for FSDP1"


@dataclass(slots=True, eq=False)
class NcclAlone(Event):
    """A framework starts the process group, with NCCL alone unless it is launched in another way, and offloads to the CPU: ``by`` says what asks for it."""

    by: str

    def words(self) -> str:
        return f"process group started on NCCL alone, and {self.by} offloads"


@dataclass(slots=True, eq=False)
class GroupEnded(Event):
    """The process group was destroyed."""

    def words(self) -> str:
        return "process group destroyed"


@dataclass(slots=True, eq=False)
class Refused(Event):
    """A framework raises here, as its own source says: ``why`` is what it refuses."""

    by: str
    why: str
    error: str = "ValueError"

    def words(self) -> str:
        return f"{self.by} refuses: {self.why}"


@dataclass(slots=True, eq=False)
class Overruled(Event):
    """The script says something else of FSDP than the settings that it is launched with, and the script counts."""

    by: str
    name: str
    script: str
    launch: str
    settings: str
    """The file that says ``launch``."""

    def words(self) -> str:
        return f"{self.by} says {self.name} {self.script}, not {self.launch}"


@dataclass(slots=True, eq=False)
class SizesDiffer(Event):
    """The sizes of a ``parallelism_config`` do not multiply to the number of processes."""

    sizes: tuple[int, ...]
    processes: int

    def words(self) -> str:
        return f"sizes {' x '.join(map(str, self.sizes))} for {self.processes} processes"


@dataclass(slots=True, eq=False)
class Upcast(Event):
    """accelerate casts the trainable parameters of a model to float32 before it shards it, because of ``by``."""

    module: Value
    by: str

    def words(self) -> str:
        return f"{self.module.words()} cast to float32 because of {self.by}"


@dataclass(slots=True, eq=False)
class CheckpointTyped(Event):
    """A framework writes its checkpoints by a type of state dicts: ``FULL_STATE_DICT`` or ``SHARDED_STATE_DICT``."""

    kind: str

    def words(self) -> str:
        return f"a checkpoint of {self.kind}"


@dataclass(slots=True, eq=False)
class WeightsSkipped(Event):
    """A call that saves a model wrote no weights, because of the settings ``by``."""

    by: str

    def words(self) -> str:
        return f"no weights saved because of {self.by}"


@dataclass(slots=True, eq=False)
class Moved(Event):
    """``.to``, ``.cuda``, ``.half``, ``to_empty`` … of a module."""

    module: Value
    how: str
    to: tuple[Value, ...]

    def words(self) -> str:
        return f"moved {self.module.words()} by {self.how}"


@dataclass(slots=True, eq=False)
class Awaited(Event):
    """A future's ``result()`` was asked for."""

    future: Value

    def words(self) -> str:
        return f"awaited {self.future.words()}"
