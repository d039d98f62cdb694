"""axolotl: its questions for the rank and its collectives; it trains through the trainers of transformers and TRL.

Source: axolotl/utils/distributed.py, axolotl/train.py (0.12).
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import calls
from fsdp2lint.meanings.results import fresh, instance
from fsdp2lint.model.events import Collective
from fsdp2lint.model.values import Bound, Function, Value

_DISTRIBUTED = "axolotl.utils.distributed."


@calls(f"{_DISTRIBUTED}is_main_process")
def is_main_process(call: Call) -> Value | None:
    """True on rank 0 (and where nothing is distributed)."""
    return call.machine.main_rank("global")


@calls(f"{_DISTRIBUTED}is_local_main_process")
def is_local_main_process(call: Call) -> Value | None:
    """The same for a host."""
    return call.machine.main_rank("local")


@calls(f"{_DISTRIBUTED}zero_first")
def zero_first(call: Call) -> Value | None:
    """A context that all ranks enter, rank 0 first."""
    return instance(call)


@calls(
    "axolotl.train.train",
    *(f"{_DISTRIBUTED}{name}" for name in ("barrier", "broadcast_dict")),
)
def collective(call: Call) -> Value | None:
    """Every process must make the call."""
    call.emit(Collective, name=call.name, about=None)
    call.escape_arguments()
    return fresh(call)


@calls(
    *(
        f"{_DISTRIBUTED}{name}"
        for name in (
            "compute_and_broadcast",
            "gather_from_all_ranks",
            "gather_scalar_from_all_ranks",
            "reduce_and_broadcast",
        )
    )
)
def gather(call: Call) -> Value | None:
    """They call what they are given and meet."""
    for value in call.args:
        if isinstance(value, Function | Bound):
            call.run(value)
    call.emit(Collective, name=call.name, about=None)
    return fresh(call)
