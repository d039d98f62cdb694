"""torchtitan: what it does to models, optimizers and checkpoints where a script uses it as a library.

Sources: torchtitan/models/*/infra/parallelize.py, torchtitan/distributed/{fsdp,utils}.py, torchtitan/tools/profiling.py,
torchtitan/components/{optimizer,lr_scheduler,checkpoint}.py (2025) and where these lie since: functions move from
module to module and keep their names.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, last
from fsdp2lint.meanings.frameworks.objects import shard
from fsdp2lint.meanings.optim import note_use
from fsdp2lint.meanings.registry import method
from fsdp2lint.meanings.results import choices, context, fresh, instance, is_a, listed, nothing
from fsdp2lint.model.events import Clipped, Collective, OptimizerBuilt, Wrapping
from fsdp2lint.model.values import Literal, Optimizer, Parameters, Value

_SHARDING = ("apply_fsdp", "apply_fsdp_to_decoder", "apply_fsdp_to_vision_encoder")
_WRAPPING = {
    "apply_ac": "checkpoint",
    "apply_compile": "compile",
    "apply_ddp": "replicate",
    "apply_replicate": "replicate",
}
_OPTIMIZERS = (
    "build_optimizers",
    "build_optimizers_with_moe_load_balancing",
    "OptimizersContainer",
    "OptimizersInBackwardContainer",
)


@family("torchtitan.")
def function(call: Call) -> Value | None:
    """The functions that the parallelization of a model is made of; each works in place."""
    name = last(call.name)
    model = call.get(0, "model")
    if name in _SHARDING:
        return nothing(call) if shard(call, model) else None
    if name in _WRAPPING and model is not None:
        for one in call.each(model):
            call.use_as_module(one)
            by = _WRAPPING[name]
            call.emit(Wrapping, module=one, by=by, result=one, options=call.keywords)
        return nothing(call)
    if name.startswith("parallelize_") and model is not None:
        return _parallelized(call, model)
    return None


def _parallelized(call: Call, model: Value) -> Value:
    """``parallelize_llama(model, …)`` returns the model; its settings say whether it shards or replicates."""
    for one in call.each(model):
        call.use_as_module(one)
    call.escape_arguments()
    return model


@family("torchtitan.")
def build_optimizers(call: Call) -> Value | None:
    """One optimizer for each of the ``model_parts``, in one object that steps them all."""
    parts = call.get(0, "model_parts")
    if last(call.name) not in _OPTIMIZERS or parts is None:
        return None
    modules = [one for part in listed(call, parts) for one in choices(part)]
    over = tuple(
        call.machine.take(Parameters(one, None)) for one in modules if not isinstance(one, Literal)
    )
    made = Optimizer(call.machine.external(call.name), over)
    call.emit(OptimizerBuilt, optimizer=made, over=over)
    return made


@family("torchtitan.")
def build_schedulers(call: Call) -> Value | None:
    """A scheduler for each optimizer."""
    if last(call.name) not in ("build_lr_schedulers", "LRSchedulersContainer"):
        return None
    return instance(call, "torch.optim.lr_scheduler.LambdaLR")


@family("torchtitan.distributed.utils.", "torchtitan.utils.")
def utility(call: Call) -> Value | None:
    """``dist_utils.clip_grad_norm_``, and means over a mesh, which name a group."""
    name = last(call.name)
    if name == "clip_grad_norm_":
        given = call.get(0, "parameters")
        note_use(call, name, given)
        call.emit(Clipped, parameters=call.parameters(given), module=None)
        return fresh(call)
    quiet = ("dist_", "get_", "set_", "create_", "check_", "init_", "maybe_")
    return fresh(call) if name.startswith(quiet) else None


@family("torchtitan.tools.profiling.")
def profiler(call: Call) -> Value | None:
    """``with maybe_enable_profiling(…) as profiler``: times what runs in it."""
    return context(call) if last(call.name).startswith("maybe_") else None


@method("save", "load")
def checkpoint(call: Call) -> Value | None:
    """``CheckpointManager.save(step)`` and ``.load()`` call ``dcp`` on every process."""
    if not is_a(call.receiver, "torchtitan.components.checkpoint"):
        return None
    call.emit(Collective, name=call.name, about=None)
    return fresh(call)
