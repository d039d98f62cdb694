"""Which rank this is: ``torch.distributed``, the environment of the launchers, the words of frameworks.

Sources: torch/distributed/distributed_c10d.py, https://docs.pytorch.org/docs/stable/elastic/run.html
(environment variables), Slurm's and Open MPI's own variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp2lint.meanings.attributes import rank
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import made_by, same, text
from fsdp2lint.model.guards import Guard, unit
from fsdp2lint.model.values import External, Literal, Mesh, Part, Partial, Rank, Value

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine

ENVIRONMENT = {
    "RANK": "global",
    "SLURM_PROCID": "global",
    "OMPI_COMM_WORLD_RANK": "global",
    "PMI_RANK": "global",
    "LOCAL_RANK": "local",
    "SLURM_LOCALID": "local",
    "OMPI_COMM_WORLD_LOCAL_RANK": "local",
    "MPI_LOCALRANKID": "local",
    "GROUP_RANK": "node",
    "NODE_RANK": "node",
    "SLURM_NODEID": "node",
}
"""Variables that hold a rank, and its scope."""


@calls("torch.distributed.get_rank")
def get_rank(call: Call) -> Value | None:
    """The global rank; within a group that is named, the rank in that group."""
    group = call.get(0, "group")
    if group is None or (isinstance(group, Literal) and group.value is None):
        return rank(call.machine, "global")
    return rank(call.machine, "group")


@calls(
    "composer.utils.dist.get_global_rank",
    "torch_xla.core.xla_model.get_ordinal",
    "torch_xla.runtime.global_ordinal",
)
def other_rank(call: Call) -> Value | None:
    """The global rank under other names."""
    return rank(call.machine, "global")


@calls(
    "torch.distributed.get_node_local_rank",
    "composer.utils.dist.get_local_rank",
    "torch_xla.core.xla_model.get_local_ordinal",
)
def local_rank(call: Call) -> Value | None:
    """The rank on this host."""
    return rank(call.machine, "local")


@calls(
    "torch_xla.core.xla_model.is_master_ordinal",
    "transformers.trainer_utils.is_main_process",
    "transformers.is_fsdp_main_process",
)
def is_main(call: Call) -> Value | None:
    """Tests for the first rank."""
    return call.machine.main_rank("global")


@method("is_world_process_zero", "is_local_process_zero")
def is_trainer_main(call: Call) -> Value | None:
    """``transformers.Trainer.is_world_process_zero()``."""
    if call.args or call.keywords:
        return None
    return call.machine.main_rank("global" if "world" in call.name else "local")


@calls(
    "os.getenv",
    "os.environ.get",
    "os.environ.__getitem__",
    "os.environ.setdefault",
    "os.environ.pop",
)
def environment(call: Call) -> Value | None:
    """A rank, or a value that is the same wherever the variable is read."""
    name = text(call.get(0, "key"))
    if name is None:
        return same(call)
    if name in ENVIRONMENT:
        return rank(call.machine, ENVIRONMENT[name])
    return call.machine.external("os.environ").part(f"[{name!r}]")


@calls("torchtune.utils.get_world_size_and_rank", "torchtune.training.get_world_size_and_rank")
def world_size_and_rank(call: Call) -> Value | None:
    """The pair."""
    size = call.machine.external("torch.distributed.get_world_size").part(("call",))
    return call.machine.container("tuple", [size, rank(call.machine, "global")])


# -- functions that only the first rank runs ---------------------------------------------------------------

_ONLY = (
    "lightning.pytorch.utilities.rank_zero_only",
    "lightning.pytorch.utilities.rank_zero.rank_zero_only",
    "lightning.fabric.utilities.rank_zero_only",
    "lightning.fabric.utilities.rank_zero.rank_zero_only",
    "lightning_utilities.core.rank_zero.rank_zero_only",
)
_METHODS = {"on_main_process": "global", "on_local_main_process": "local"}
"""Of accelerate's ``Accelerator`` and ``PartialState``, with the scope of their rank 0."""
_RUN = "rank_zero_only of"


def runs_on(machine: Machine, decorator: Value) -> Value | None:
    """The test of the rank under which a function with this decorator runs; None for other decorators."""
    if isinstance(decorator, External) and decorator.name in _ONLY:
        return machine.main_rank("global")
    if isinstance(decorator, Part) and decorator.name in _METHODS:
        if made_by(decorator.owner, "accelerate."):
            return machine.main_rank(_METHODS[decorator.name])
    return None


@calls(*_ONLY)
def rank_zero_only(call: Call) -> Value | None:
    """Lightning's decorator: the function runs on rank 0, elsewhere the call returns None."""
    function = call.get(0, "fn")
    return (
        None if function is None else Partial(call.machine.external(_RUN), (function,), {}, False)
    )


@method(*_METHODS)
def on_main_process(call: Call) -> Value | None:
    """The same decorator as a method of accelerate's ``Accelerator`` and ``PartialState``."""
    function = call.get(0, "function")
    if function is None or not made_by(call.receiver, "accelerate."):
        return None
    return Partial(call.machine.external(_RUN), (function,), {}, False)


@calls(_RUN)
def run_on_rank_zero(call: Call) -> Value | None:
    """Calls the function under the guard that this is rank 0."""
    if not call.args:
        return None
    machine, here = call.machine, call.machine.here
    machine.here = here.also(unit(Guard(machine.main_rank("global"), True, call.site)))
    result = machine.call(call.args[0], call.args[1:], call.keywords, call.site, call.open)
    machine.here = here
    return result


# -- meshes ---------------------------------------------------------------------------------------------------


@method("get_local_rank")
def mesh_local_rank(call: Call) -> Value | None:
    """``DeviceMesh.get_local_rank(dim)``: the coordinate along a dimension (torch/distributed/device_mesh.py)."""
    if not isinstance(call.receiver, Mesh):
        return None
    named = text(call.get(0, "mesh_dim"))
    own = call.receiver.names
    if named is None and own is not None and len(own) == 1:
        named = own[0]
    return rank(call.machine, named or "dimension")


@method("get_rank")
def mesh_rank(call: Call) -> Value | None:
    """``DeviceMesh.get_rank()`` is the global rank."""
    return rank(call.machine, "global") if isinstance(call.receiver, Mesh) else None


@calls("builtins.int")
def to_int(call: Call) -> Value | None:
    """``int`` of a rank is that rank; of a constant a constant."""
    value = call.get(0)
    if value is None:
        return call.machine.literal(0)
    return call.machine.spread(value, lambda one: _int(call, one))


def _int(call: Call, value: Value) -> Value:
    if isinstance(value, Rank):
        return value
    if isinstance(value, Literal) and len(call.args) == 1:
        try:
            return call.machine.literal(int(value.value))  # type: ignore[call-overload]
        except (TypeError, ValueError, OverflowError):
            return value.part(("int",))
    return value.part(("int", *call.args[1:]))
