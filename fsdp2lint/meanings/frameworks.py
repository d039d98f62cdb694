"""Trainers and libraries that take a model over: accelerate, transformers, TRL, Lightning, PEFT, DeepSpeed, Ray
Train, torchtune.

Sources: accelerate/accelerator.py, transformers/trainer.py, peft/mapping.py and the documentation of the others.
What they are given goes out of sight; what ``prepare`` returns is new.
"""

from __future__ import annotations

from fsdp2lint.meanings.attributes import rank
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, is_class_name
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import each_choice, fresh, instance, made_by, nothing, text
from fsdp2lint.model.events import Collective, Saved, Sharded, StateDictTaken, Wrapping
from fsdp2lint.model.values import Part, StateDict, Unknown, Value, Wrapped, unwrapped

_ACCELERATE = "accelerate."
_FABRIC = "lightning.fabric."


@family("accelerate.", "lightning.", "trl.", "transformers.", "deepspeed.", "composer.", "peft.")
def framework_object(call: Call) -> Value | None:
    """Objects of a framework; models and optimizers among their arguments go out of sight."""
    if not is_class_name(call.name):
        return None
    call.escape_arguments()
    return instance(call)


_LIFE = (
    "prepare_data",
    "setup",
    "configure_model",
    "configure_optimizers",
    "on_fit_start",
    "on_train_start",
    "training_step",
    "validation_step",
)
"""What Lightning's ``Trainer.fit`` calls, in its order (Lightning documentation, "LightningModule: hooks")."""


@method("fit")
def fit(call: Call) -> Value | None:
    """``Trainer.fit(module)`` runs the module's hooks and keeps the module."""
    if not made_by(call.receiver, "lightning.pytorch.Trainer"):
        return None
    for one in call.each(call.get(0, "model")):
        for name in _LIFE:
            hook = call.machine.method(one, name)
            if hook is not None:
                call.escape(call.machine.call(hook, (), {}, call.site, True))
    call.escape_arguments()
    return nothing(call)


@method(
    "prepare", "prepare_model", "prepare_optimizer", "prepare_data_loader", "setup", "setup_module"
)
def prepare(call: Call) -> Value | None:
    """``Accelerator.prepare(…)`` and ``Fabric.setup(…)`` return wrapped objects in the order of the arguments."""
    if not made_by(call.receiver, _ACCELERATE, _FABRIC) or call.open:
        return None
    call.escape_arguments()
    made = [_prepared(call, value) for value in call.args]
    if len(made) == 1:
        return made[0]
    return call.machine.container("tuple", made)


def _prepared(call: Call, value: Value) -> Value:
    made = fresh(call)
    if call.is_module(value):
        call.use_as_module(made)
    return made


@method("wait_for_everyone", "gather_for_metrics", "pad_across_processes")
def accelerate_collective(call: Call) -> Value | None:
    """Methods of ``Accelerator`` and ``PartialState`` that every process must call."""
    if not _is_accelerator(call):
        return None
    call.emit(Collective, name=call.name, about=call.get(0, "tensor"))
    return fresh(call)


def _is_accelerator(call: Call) -> bool:
    """Built in sight, or not known: no other library has methods of these names."""
    return made_by(call.receiver, _ACCELERATE) or isinstance(call.receiver, Unknown | Part)


@method("gather", "reduce", "barrier", "all_reduce", "broadcast")
def collective(call: Call) -> Value | None:
    """Methods of ``Accelerator`` and ``Fabric`` that every process must call."""
    if not made_by(call.receiver, _ACCELERATE, _FABRIC):
        return None
    call.emit(Collective, name=call.name, about=call.get(0, "tensor"))
    return fresh(call)


@method("get_state_dict")
def get_state_dict(call: Call) -> Value | None:
    """``Accelerator.get_state_dict(model)`` gathers the full state on all processes."""
    model = call.get(0, "model")
    if model is None or not made_by(call.receiver, _ACCELERATE):
        return None
    made = StateDict(model, "model", full=True, offloaded=None, via=call.name, taken=call.now)
    call.emit(Collective, name=call.name, about=model)
    call.emit(StateDictTaken, state=made)
    return made


@method("save_state", "load_state", "save_model")
def checkpoint(call: Call) -> Value | None:
    """Checkpoints of all processes."""
    if not made_by(call.receiver, _ACCELERATE):
        return None
    call.emit(Collective, name=call.name, about=None)
    return nothing(call)


@method("save")
def save(call: Call) -> Value | None:
    """``Accelerator.save(obj, file)`` writes on the main process alone."""
    what = call.get(0, "obj")
    if what is None or not made_by(call.receiver, _ACCELERATE):
        return None
    call.emit(
        Saved,
        what=what,
        via="accelerate.Accelerator.save",
        path=call.get(1, "f"),
        states=call.states(what),
    )
    return nothing(call)


@method("unwrap_model")
def unwrap_model(call: Call) -> Value | None:
    """The model inside its wrappers."""
    model = call.get(0, "model")
    if model is None or not _is_accelerator(call):
        return None
    return each_choice(model, unwrapped)


@method(
    "accumulate", "autocast", "no_backward_sync", "main_process_first", "local_main_process_first"
)
def manager(call: Call) -> Value | None:
    """Contexts of ``Accelerator`` and ``Fabric``."""
    return instance(call) if made_by(call.receiver, _ACCELERATE, _FABRIC) else None


@calls("peft.get_peft_model")
def get_peft_model(call: Call) -> Value | None:
    """Puts adapters into the model, in place, and returns a ``PeftModel`` around it."""
    model = call.get(0, "model")
    if model is None:
        return None

    def one(inner: Value) -> Value:
        call.use_as_module(inner)
        made = Wrapped(inner, "peft")
        call.emit(Wrapping, module=inner, by="peft", result=made, options=call.keywords)
        return made

    return call.machine.spread(model, one)


@calls("peft.prepare_model_for_kbit_training")
def prepare_for_kbit(call: Call) -> Value | None:
    """Freezes and casts the model and returns it."""
    return call.get(0, "model")


# -- collectives under other names ---------------------------------------------------------------------


@calls(
    *(
        f"accelerate.utils.{home}{name}"
        for home, names in (
            ("", "gather gather_object broadcast broadcast_object_list reduce"),
            ("operations.", "gather gather_object broadcast broadcast_object_list reduce"),
            ("", "save_fsdp_model load_fsdp_model save_fsdp_optimizer load_fsdp_optimizer"),
            ("", "pad_across_processes wait_for_everyone"),
        )
        for name in names.split()
    ),
    "torchtune.training.load_from_full_optimizer_state_dict",
    "torchtune.training.get_full_optimizer_state_dict",
)
def function_of_all_processes(call: Call) -> Value | None:
    """Functions that every process must call (accelerate/utils/operations.py, fsdp_utils.py;
    torchtune/training/_distributed.py).
    """
    call.emit(Collective, name=call.name, about=call.get(0, "tensor"))
    return fresh(call)


@method("save_checkpoint", "load", "clip_gradients", "all_gather")
def lightning_collective(call: Call) -> Value | None:
    """Methods of Lightning's ``Trainer`` and ``Fabric`` that every process must call, as their docs say."""
    if not made_by(call.receiver, _FABRIC, "lightning.pytorch.Trainer"):
        return None
    call.emit(Collective, name=call.name, about=None)
    return fresh(call)


@calls("ray.train.report")
def ray_report(call: Call) -> Value | None:
    """A barrier: each worker must call it as often as the others (Ray Train, "Saving and Loading Checkpoints")."""
    call.emit(Collective, name=call.name, about=None)
    return nothing(call)


@method("get_world_rank", "get_local_rank")
def ray_rank(call: Call) -> Value | None:
    """``ray.train.get_context().get_world_rank()``."""
    if not made_by(call.receiver, "ray.train."):
        return None
    return rank(call.machine, "global" if "world" in call.name else "local")


@calls("ray.train.get_context")
def ray_context(call: Call) -> Value | None:
    """The worker that this is."""
    return instance(call)


# -- functions that shard, wrap or gather -----------------------------------------------------------------


@calls("ray.train.torch.prepare_model")
def ray_prepare_model(call: Call) -> Value | None:
    """Moves the model and wraps it, by ``parallel_strategy``: in DDP unless told otherwise, in FSDP1 for "fsdp"."""
    model, strategy = call.get(0, "model"), call.get(2, "parallel_strategy")
    by = {None: "ddp", "ddp": "ddp", "fsdp": "fsdp1"}.get(text(strategy))
    if model is None or by is None or (strategy is not None and text(strategy) is None):
        return None

    def one(inner: Value) -> Value:
        call.use_as_module(inner)
        made = Wrapped(inner, by)
        call.emit(Wrapping, module=inner, by=by, result=made, options={})
        return made

    return call.machine.spread(model, one)


@calls("torchtune.training.shard_model")
def torchtune_shard_model(call: Call) -> Value | None:
    """``fully_shard`` on the layers that pass the conditions, then on the model (torchtune/training/_distributed.py).

    Which layers these are is not known: the model goes out of sight.
    """
    model = call.get(0, "model")
    if model is None:
        return None
    for one in call.each(model):
        call.use_as_module(one)
        call.emit(Sharded, modules=(one,), options={}, open=True)
    call.escape_arguments()
    return nothing(call)


@calls("torchtune.training.gather_cpu_state_dict")
def torchtune_gather(call: Call) -> Value | None:
    """Gathers the parameters one by one; only rank 0 has them afterwards."""
    model = call.get(0, "model")
    if model is None:
        return None
    made = StateDict(model, "model", full=True, offloaded=True, via=call.name, taken=call.now)
    call.emit(Collective, name=call.name, about=model)
    call.emit(StateDictTaken, state=made)
    return made
