"""torchtune: what its recipes call to shard, restore and gather.

Sources: torchtune/models/*/_model_builders.py, torchtune/training/{_distributed,_compile,memory}.py,
torchtune/training/checkpointing/_checkpointer.py (0.6).
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, is_class_name, last
from fsdp2lint.meanings.frameworks.objects import shard
from fsdp2lint.meanings.modules import module
from fsdp2lint.meanings.registry import ALIASES, calls, method
from fsdp2lint.meanings.results import fresh, instance, is_a, nothing
from fsdp2lint.model.events import Collective, Restored, StateDictTaken, Wrapping
from fsdp2lint.model.values import StateDict, Value

_HOME = "torchtune.training."
ALIASES.update(
    {f"{_HOME}{name}.": _HOME for name in ("_distributed", "_compile", "memory", "checkpointing")}
)


@family("torchtune.models.")
def model(call: Call) -> Value | None:
    """Builders of models, beside those of what prepares their data (``torchtune/models/*/_model_builders.py``)."""
    name = last(call.name)
    if is_class_name(call.name) or name.endswith(("tokenizer", "transform")):
        return None
    return module(call)


@calls(f"{_HOME}prepare_mha_for_tp")
def prepare_heads(call: Call) -> Value | None:
    """Sets the numbers of heads in place and returns the model."""
    return call.get(0, "model")


@calls(f"{_HOME}shard_model")
def shard_model(call: Call) -> Value | None:
    """``fully_shard`` on the layers that pass the conditions, then on the model.

    Which layers these are is not known: the model escapes.
    """
    return nothing(call) if shard(call, call.get(0, "model")) else None


@calls(f"{_HOME}set_activation_checkpointing", f"{_HOME}apply_selective_activation_checkpointing")
def set_activation_checkpointing(call: Call) -> Value | None:
    """``apply_activation_checkpointing``: layers are replaced by their wrappers, in place."""
    return _wrap(call, "checkpoint")


@calls(f"{_HOME}compile_model")
def compile_model(call: Call) -> Value | None:
    """Compiles each layer in place."""
    return _wrap(call, "compile")


def _wrap(call: Call, by: str) -> Value | None:
    model = call.get(0, "model")
    if model is None:
        return None
    for one in call.each(model):
        call.use_as_module(one)
        call.emit(Wrapping, module=one, by=by, result=one, options=call.keywords)
    return nothing(call)


# -- states ---------------------------------------------------------------------------------------------------


@calls(f"{_HOME}load_from_full_model_state_dict")
def load_model(call: Call) -> Value | None:
    """Cuts full tensors into the model's shards; every process must call it."""
    return _load(call, call.get(0, "model"), call.get(1, "full_sd"), "model")


@calls(f"{_HOME}load_from_full_optimizer_state_dict")
def load_optimizer(call: Call) -> Value | None:
    """The same for an optimizer (``(model, opt, full_sd, device)``)."""
    return _load(call, call.get(1, "opt"), call.get(2, "full_sd"), "optimizer")


def _load(call: Call, into: Value | None, state: Value | None, kind: str) -> Value | None:
    if into is None or state is None:
        return None
    for one in call.each(into):
        if kind == "model":
            call.use_as_module(one)
        call.emit(Collective, name=call.name, about=one)
        call.emit(Restored, into=one, state=state, via=call.name.rpartition(".")[2], kind=kind)
    return fresh(call)


@calls(f"{_HOME}gather_cpu_state_dict", f"{_HOME}get_full_model_state_dict")
def gather_model(call: Call) -> Value | None:
    """Gathers the parameters one by one; only rank 0 has them afterwards."""
    return _gathered(call, call.get(0, "model"), "model")


@calls(f"{_HOME}get_full_optimizer_state_dict")
def gather_optimizer(call: Call) -> Value | None:
    """Gathers the optimizer's state; only rank 0 has it afterwards."""
    return _gathered(call, call.get(1, "opt"), "optimizer")


def _gathered(call: Call, of: Value | None, kind: str) -> Value | None:
    if of is None:
        return None
    made = StateDict(of, kind, full=True, offloaded=True, via=call.name, taken=call.now)
    call.emit(Collective, name=call.name, about=of)
    call.emit(StateDictTaken, state=made)
    return made


@calls(f"{_HOME}DistributedCheckpointer")
def checkpointer(call: Call) -> Value | None:
    """Writes by the distributed checkpoint."""
    return instance(call)


@method("save_checkpoint", "load_checkpoint")
def checkpoint(call: Call) -> Value | None:
    """Every process must call them; the other checkpointers of torchtune write on rank 0 alone."""
    if not is_a(call.receiver, f"{_HOME}DistributedCheckpointer"):
        return None
    call.emit(Collective, name=call.name, about=None)
    return fresh(call)
