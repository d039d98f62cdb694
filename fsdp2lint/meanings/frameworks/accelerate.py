"""accelerate: ``Accelerator`` prepares models and optimizers, gathers, and writes checkpoints.

Sources: accelerate/accelerator.py, accelerate/utils/{dataclasses,operations,other,fsdp_utils}.py (1.13).

By which FSDP ``prepare`` shards is often said at the launch, not in the script. It is known when the script itself
gives ``Accelerator`` a plugin with its ``fsdp_version``, or when settings around it do
(:mod:`fsdp2lint.frameworks.launches`): version 2 calls ``fully_shard`` on the model in place and
puts the new parameters into the optimizers that come in the same call.
"""

from __future__ import annotations

import os
from math import prod

from fsdp2lint.frameworks.asked import Launch
from fsdp2lint.meanings.autograd import clip_gradients
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.frameworks.objects import layer_classes, renewed, shard
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import (
    constant,
    each_choice,
    fresh,
    instance,
    made_by,
    name_of,
    nothing,
    prepared,
    setting,
)
from fsdp2lint.model.events import (
    AskedOldVersion,
    CheckpointTyped,
    Collective,
    GroupStarted,
    NcclAlone,
    OptimizerBuilt,
    Overruled,
    Refused,
    Restored,
    Saved,
    SizesDiffer,
    StateDictTaken,
    Upcast,
)
from fsdp2lint.model.values import (
    Container,
    External,
    Instance,
    Optimizer,
    Part,
    StateDict,
    Unknown,
    Value,
    Wrapped,
)

_ACCELERATE = "accelerate."
_PLUGIN = "FullyShardedDataParallelPlugin"


_FSDP1 = "torch.distributed.fsdp"
_TRUE_OR_FALSE = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")
_SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
_CONFIGS = tuple(
    f"accelerate.{home}ParallelismConfig" for home in ("", "utils.", "parallelism_config.")
)


_GROUP = tuple(f"accelerate.{home}InitProcessGroupKwargs" for home in ("", "utils."))


@calls("accelerate.Accelerator", *(f"accelerate.{home}{_PLUGIN}" for home in ("", "utils.")))
@calls(*_CONFIGS, *_GROUP)
def settings(call: Call) -> Value | None:
    """They keep what they are given as it is: the plugin can be asked for its version later."""
    made = instance(call)
    if call.name.endswith(_PLUGIN):
        _refuse_arguments(call)
        if _is_old(call):
            call.emit(AskedOldVersion, framework="accelerate")
    if call.name == "accelerate.Accelerator" and (known := launch(call)) is not None:
        plugin = setting(call, made, "fsdp_plugin")
        if made_by(plugin, _ACCELERATE):
            named = {name for name, _ in known.named if name != "mixed_precision"}
            _overruled(call, plugin, "the plugin", known, named)
        _overruled(call, made, "the argument", known, {"mixed_precision"})
        multiply(call, made, known)
    if call.name == "accelerate.Accelerator":
        _start_group(call, made)
    return made


def _is_old(call: Call) -> bool:
    """Whether a plugin means version 1: it is the default where the launch says no other (``__post_init__``)."""
    said = call.keywords.get("fsdp_version")
    if said is None or constant(said) is None:
        return not call.open and launched_version(call) in (None, 1)
    return constant(said) == 1


def _start_group(call: Call, accelerator: Value) -> None:
    """``PartialState.__init__`` starts the group before it looks at a plugin (accelerate/state.py)."""
    plugin = setting(call, accelerator, "fsdp_plugin")
    if not made_by(plugin, _ACCELERATE) or constant(setting(call, accelerator, "cpu")) is True:
        return
    handlers = call.keywords.get("kwargs_handlers")
    if handlers is not None and not _leave_backend(call, handlers):
        return
    if constant(setting(call, plugin, "fsdp_version")) == 2 and _is_offload(call, plugin):
        on_nccl(call, "the plugin")


def _leave_backend(call: Call, handlers: Value) -> bool:
    """Whether handlers surely say no backend: only ``InitProcessGroupKwargs`` can, whose default is NCCL."""
    if not isinstance(handlers, Container) or handlers.open:
        return False
    for one in call.items(handlers):
        if made_by(one, *_GROUP):
            backend = setting(call, one, "backend")
            if not is_unset(backend, one) and constant(backend) != "nccl":
                return False
        elif not made_by(one, _ACCELERATE):
            return False
    return True


def _is_offload(call: Call, plugin: Value | None) -> bool:
    """Whether a plugin says that parameters lie on the CPU."""
    said = setting(call, plugin, "cpu_offload")
    return constant(said) is True or made_by(said, "torch.distributed.fsdp.CPUOffloadPolicy")


def on_nccl(call: Call, by: str) -> None:
    """The group starts here on NCCL alone, unless the launcher says that it offloads or that states are full: then accelerate asks for a backend for the CPU."""
    known = launch(call)
    full = known is not None and known.state_dict_type == "FULL_STATE_DICT"
    started = any(True for _ in call.machine.trace.of(GroupStarted))
    if not started and not full and not (known is not None and known.offload):
        call.emit(NcclAlone, by=by)


def _refuse_arguments(call: Call) -> None:
    """What ``FullyShardedDataParallelPlugin.__post_init__`` raises a ValueError for, where the version is written out."""
    given = call.keywords
    version = constant(given.get("fsdp_version"))
    reshard = constant(given.get("reshard_after_forward"))
    why = ""
    if version == 2:
        if constant(given.get("forward_prefetch")) in (True, False):
            why = "version 2 has no `forward_prefetch`"
        elif isinstance(reshard, str) and reshard.lower() not in _TRUE_OR_FALSE:
            why = "version 2 wants true or false for `reshard_after_forward`"
        elif str(constant(given.get("state_dict_type"))).upper() == "LOCAL_STATE_DICT":
            why = "version 2 has no LOCAL_STATE_DICT"
        elif name_of(given.get("cpu_offload")) == f"{_FSDP1}.CPUOffload":
            why = "version 2 wants a `CPUOffloadPolicy`, or true, for `cpu_offload`"
        elif name_of(given.get("mixed_precision_policy")) == f"{_FSDP1}.MixedPrecision":
            why = "version 2 wants a `MixedPrecisionPolicy`"
    elif version == 1 and isinstance(reshard, bool):
        why = "version 1 wants a strategy for `reshard_after_forward`, not true or false"
    if why:
        call.emit(Refused, by="accelerate", why=why)


def multiply(call: Call, owner: Value | None, known: Launch) -> None:
    """``_validate_accelerator``: the sizes of the script, or else of the launch, multiply to its number of processes."""
    config = setting(call, owner, "parallelism_config")
    left = is_unset(config, owner)
    if not known.processes or not (left or made_by(config, *_CONFIGS)):
        return
    sizes = dict.fromkeys(_SIZES, 1) | dict(known.sizes)
    for name in () if left else _SIZES:
        given = setting(call, config, name)
        size = sizes[name] if is_unset(given, config) else constant(given)
        if type(size) is not int:
            return
        sizes[name] = size
    product = prod(sizes.values())
    if sizes["sp_size"] == 1 and product not in (1, known.processes):
        several = tuple(size for size in sizes.values() if size != 1)
        call.emit(SizesDiffer, sizes=several, processes=known.processes)


def is_unset(value: Value | None, owner: Value | None) -> bool:
    """Whether an argument was not given to the object that keeps it: one that comes from elsewhere is another's part."""
    return value is None or (isinstance(value, Part) and value.owner is owner)


def _overruled(call: Call, owner: Value | None, by: str, known: Launch, names: set[str]) -> None:
    """What the script says otherwise than the launch: accelerate asks the environment only for the rest."""
    for name, wanted in known.named:
        said = constant(setting(call, owner, name)) if name in names else None
        if isinstance(said, str | int) and str(said).upper() != wanted.upper():
            call.emit(
                Overruled,
                by=by,
                name=name,
                script=str(said),
                launch=wanted,
                settings=known.settings,
            )


def launch(call: Call) -> Launch | None:
    """How settings around this program launch it with FSDP."""
    hints = call.machine.project.hints
    return hints.launch(os.path.abspath(call.machine.trace.source.path)) if hints.launched else None


def launched_version(call: Call) -> int | None:
    """The version of FSDP that the settings of this program's launch ask for."""
    known = launch(call)
    return None if known is None else known.version


def is_left_open(value: Value | None) -> bool:
    """Whether no resolved code says a setting."""
    return value is None or isinstance(value, Part | Unknown)


def fsdp_version(call: Call) -> int | None:
    """The version of FSDP that the accelerator was built for; None when the script does not say.

    On CPUs the plugin has no effect (accelerate/state.py, ``AcceleratorState.__init__``).
    """
    if constant(setting(call, call.receiver, "cpu")) is True:
        return None
    plugin = setting(call, call.receiver, "fsdp_plugin")
    if is_left_open(plugin) and made_by(call.receiver, "accelerate.Accelerator"):
        return launched_version(call)
    if not made_by(plugin, _ACCELERATE):
        return None
    version = constant(setting(call, plugin, "fsdp_version"))
    return version if isinstance(version, int) else None


@method("prepare", "prepare_model", "prepare_optimizer", "prepare_data_loader", "prepare_scheduler")
def prepare(call: Call) -> Value | None:
    """``Accelerator.prepare(…)`` returns prepared objects in the order of the arguments.

    An optimizer without a model is wrapped and keeps its parameters (``AcceleratedOptimizer``).
    """
    if not made_by(call.receiver, _ACCELERATE) or call.open:
        return None
    if call.name in (".prepare", ".prepare_model") and not _asked_for_fsdp(call):
        _refuse_classes(call)
    second = call.name == ".prepare" and fsdp_version(call) == 2
    if second and not _asked_for_fsdp(call):
        why = _refusal(call)
        if why:
            call.emit(Refused, by="accelerate", why=why)
    if second and _model_and_optimizer(call):
        made = [_sharded(call, value) for value in call.args]
    elif all(isinstance(v, Optimizer) or _is_neither(v) for v in call.args):
        made = [v if isinstance(v, Optimizer) else prepared(call, v) for v in call.args]
        call.escape(*(v for v in call.args if not isinstance(v, Optimizer)))
    else:
        call.escape_arguments()
        made = [prepared(call, value) for value in call.args]
    if len(made) == 1:
        return made[0]
    return call.machine.container("tuple", made)


def _model_and_optimizer(call: Call) -> bool:
    """Whether both are there, as ``prepare`` demands for FSDP2 (it raises a ValueError otherwise)."""
    models = [v for v in call.args if call.is_module(v)]
    return len(models) == 1 and any(isinstance(v, Optimizer) for v in call.args)


def _refusal(call: Call) -> str:
    """Why ``prepare`` raises a ValueError with FSDP2 (accelerate/accelerator.py); empty when it does not, or may not."""
    models = [v for v in call.args if call.is_module(v)]
    optimizers = [v for v in call.args if isinstance(v, Optimizer)]
    if not all(v in models or v in optimizers or _is_neither(v) for v in call.args):
        return ""
    if len(models) > 1:
        return "with FSDP2, one call of `prepare` takes only one model"
    if models and not optimizers:
        return "with FSDP2, `prepare` takes the model together with its optimizer"
    if optimizers and not models:
        return "with FSDP2, `prepare` takes the optimizer together with its model"
    return ""


def _refuse_classes(call: Call) -> None:
    """``set_auto_wrap_policy`` raises a ValueError for a name that no class in the model has, in both versions."""
    names = _wrapped_classes(call)
    for model in (v for v in call.args if names and call.is_module(v)):
        known = layer_classes(call, model)
        missing = [name for name in names if known is not None and name not in known]
        if missing:
            by_launch = is_left_open(setting(call, call.receiver, "fsdp_plugin"))
            named = "settings of the launch name" if by_launch else "plugin names"
            why = f"the {named} `{missing[0]}` to wrap, and the model has no class of this name"
            call.emit(Refused, by="accelerate", why=why)


def _wrapped_classes(call: Call) -> list[str]:
    """The names that the plugin, or the settings of the launch, ask to wrap; none where they are not known."""
    if constant(setting(call, call.receiver, "cpu")) is True or fsdp_version(call) is None:
        return []
    plugin = setting(call, call.receiver, "fsdp_plugin")
    if is_left_open(plugin):
        known = launch(call)
        return [] if known is None else [*known.wrapped]
    policy = constant(setting(call, plugin, "auto_wrap_policy"))
    named = setting(call, plugin, "transformer_cls_names_to_wrap")
    if str(policy).upper() != "TRANSFORMER_BASED_WRAP" or not isinstance(named, Container):
        return []
    names = [constant(one) for one in call.items(named)]
    return [str(name) for name in names] if all(isinstance(n, str) for n in names) else []


def _is_neither(value: Value) -> bool:
    """Whether a value is surely no model and no optimizer: a loader or a schedule."""
    return made_by(value, "torch.utils.data.", "torch.optim.lr_scheduler.", *_SCHEDULES)


_SCHEDULES = ("transformers.get_", "transformers.optimization.get_")
"""What makes schedules: the names of its functions begin so."""


def _asked_for_fsdp(call: Call) -> bool:
    """Whether the script asks here by which FSDP it runs: then it may know better."""
    return any("fsdp" in guard.test.words().lower() for guard in call.machine.here)


def _sharded(call: Call, value: Value) -> Value:
    """``_prepare_fsdp2``: the model stays the same object, the optimizer gets its new parameters.

    A model that the script has sharded itself is left as it is (``fsdp2_prepare_model``).
    """
    if call.is_module(value):
        if by := mixed_precision(call):
            call.emit(Upcast, module=value, by=by)
        shard(call, value, again=False, offload=_offloads(call))
        return value
    call.escape(value)
    if not isinstance(value, Optimizer):
        return fresh(call)
    made = renewed(call, value)
    call.emit(OptimizerBuilt, optimizer=made, over=made.over)
    return made


def mixed_precision(call: Call) -> str:
    """What asks for mixed precision, in words; empty where nothing does, or it is not known."""
    given = constant(setting(call, call.receiver, "mixed_precision"))
    if isinstance(given, str):
        return f'`mixed_precision="{given}"`' if given != "no" else ""
    known = launch(call)
    left = is_unset(setting(call, call.receiver, "mixed_precision"), call.receiver)
    said = known.mixed_precision if known is not None and (left or given is None) else ""
    return f"`mixed_precision: {said}`" if said else ""


def _offloads(call: Call) -> bool:
    """Whether the plugin, or the launch where the plugin leaves it open, keeps the parameters on the CPU."""
    plugin = setting(call, call.receiver, "fsdp_plugin")
    if _is_offload(call, plugin):
        return True
    said = None if is_left_open(plugin) else setting(call, plugin, "cpu_offload")
    known = launch(call)
    return said is None and known is not None and known.offload


@method("clip_grad_value_")
def clip_values(call: Call) -> Value | None:
    """``Accelerator.clip_grad_value_`` raises with FSDP."""
    if not made_by(call.receiver, _ACCELERATE):
        return None
    if fsdp_version(call) is not None and not _asked_for_fsdp(call):
        why = "with FSDP it clips norms alone: use `clip_grad_norm_`"
        call.emit(Refused, by="accelerate", why=why, error="Exception")
    return clip_gradients(call, call.get(0, "parameters"), call.name[1:])


# -- what all processes must call -----------------------------------------------------------------------


@method("wait_for_everyone", "gather_for_metrics", "pad_across_processes")
def accelerate_collective(call: Call) -> Value | None:
    """Methods of ``Accelerator`` and ``PartialState`` that every process must call."""
    if not _is_accelerator(call):
        return None
    call.emit(Collective, name=call.name, about=call.get(0, "tensor"))
    return fresh(call)


def _is_accelerator(call: Call) -> bool:
    """Built by resolved code, or not known: no other library has methods of these names."""
    return made_by(call.receiver, _ACCELERATE) or isinstance(call.receiver, Unknown | Part)


@method("gather", "reduce")
def collective(call: Call) -> Value | None:
    """Methods of ``Accelerator`` that every process must call."""
    if not made_by(call.receiver, _ACCELERATE):
        return None
    call.emit(Collective, name=call.name, about=call.get(0, "tensor"))
    return fresh(call)


@method("get_state_dict")
def get_state_dict(call: Call) -> Value | None:
    """``Accelerator.get_state_dict(model)`` gathers the full state; with FSDP rank 0 alone gets it."""
    model = call.get(0, "model")
    if model is None or not made_by(call.receiver, _ACCELERATE):
        return None
    offloaded = True if fsdp_version(call) is not None else None
    made = StateDict(model, "model", full=True, offloaded=offloaded, via=call.name, taken=call.now)
    if not _without_fsdp(call):
        call.emit(Collective, name=call.name, about=model)
    call.emit(StateDictTaken, state=made)
    return made


@method("save_state", "load_state", "save_model")
def checkpoint(call: Call) -> Value | None:
    """Checkpoints of all processes: with FSDP each writes, or the full state is gathered from all."""
    if not made_by(call.receiver, _ACCELERATE):
        return None
    if not _without_fsdp(call):
        call.emit(Collective, name=call.name, about=None)
        if call.name == ".save_state" and (kind := _type_of_states(call)):
            call.emit(CheckpointTyped, kind=kind)
    return nothing(call)


def _type_of_states(call: Call) -> str:
    """The type of the state dicts that the plugin or the launch asks for; empty where it is not known."""
    version = fsdp_version(call)
    plugin = setting(call, call.receiver, "fsdp_plugin")
    known = launch(call)
    if version is None:
        return ""
    said = None if is_left_open(plugin) else setting(call, plugin, "state_dict_type")
    if said is None or is_unset(said, plugin):
        default = "FULL_STATE_DICT" if version == 1 else "SHARDED_STATE_DICT"
        return default if known is None else known.state_dict_type
    kind = constant(said)
    return kind.upper() if isinstance(kind, str) else ""


def _without_fsdp(call: Call) -> bool:
    """Whether the script has asked here for the kind of training, and it is not FSDP's or DeepSpeed's."""
    for guard in call.machine.here:
        asked = guard.test
        if not isinstance(asked, Part) or not isinstance(asked.key, tuple) or len(asked.key) != 2:
            continue
        how, kind = asked.key
        of_type = isinstance(asked.owner, Part) and asked.owner.name == "distributed_type"
        if not of_type or how not in ("==", "is") or not isinstance(kind, External):
            continue
        sharding = kind.name.endswith((".FSDP", ".DEEPSPEED", ".MEGATRON_LM"))
        if sharding is not guard.taken:
            return True
    return False


_OPERATIONS = "gather gather_object broadcast broadcast_object_list reduce".split()
_FSDP_CHECKPOINTS = "save_fsdp_model load_fsdp_model save_fsdp_optimizer load_fsdp_optimizer"


@calls(
    *(f"accelerate.utils.{home}{n}" for home in ("", "operations.") for n in _OPERATIONS),
    *(f"accelerate.utils.{n}" for n in _FSDP_CHECKPOINTS.split()),
    *(f"accelerate.utils.fsdp_utils.{n}" for n in _FSDP_CHECKPOINTS.split()),
    *(f"accelerate.utils.{n}" for n in ("pad_across_processes", "wait_for_everyone")),
)
def function_of_all_processes(call: Call) -> Value | None:
    """Functions that every process must call (accelerate/utils/operations.py, fsdp_utils.py)."""
    call.emit(Collective, name=call.name, about=call.get(0, "tensor"))
    return fresh(call)


# -- the model ----------------------------------------------------------------------------------------------


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
    """The model inside the wrappers that ``prepare`` puts around it; adapters stay."""
    model = call.get(0, "model")
    if model is None or not _is_accelerator(call):
        return None
    return each_choice(model, _bare)


@calls(
    "accelerate.utils.extract_model_from_parallel",
    "accelerate.utils.other.extract_model_from_parallel",
)
def extract_model(call: Call) -> Value | None:
    """What ``unwrap_model`` calls (accelerate/utils/other.py)."""
    model = call.get(0, "model")
    return None if model is None else each_choice(model, _bare)


def _bare(model: Value) -> Value:
    while isinstance(model, Wrapped) and model.by in ("compile", "ddp", "dp", "fsdp1"):
        model = model.of
    return model


@calls(
    "accelerate.utils.fsdp2_prepare_model",
    "accelerate.utils.fsdp_utils.fsdp2_prepare_model",
)
def fsdp2_prepare_model(call: Call) -> Value | None:
    """``fully_shard`` on the modules of the auto-wrap policy and on the model, in place."""
    model = call.get(1, "model")
    return model if shard(call, model, again=False) else None


@calls(
    "accelerate.utils.fsdp2_load_full_state_dict",
    "accelerate.utils.fsdp_utils.fsdp2_load_full_state_dict",
)
def fsdp2_load_full_state_dict(call: Call) -> Value | None:
    """Sends rank 0's tensors to all ranks, shard by shard, and assigns them."""
    model, state = call.get(1, "model"), call.get(2, "full_sd")
    if model is None or state is None:
        return None
    for one in call.each(model):
        call.use_as_module(one)
        call.emit(Collective, name=call.name, about=one)
        call.emit(Restored, into=one, state=state, via=call.name.rpartition(".")[2], kind="model")
    return nothing(call)


# -- contexts -------------------------------------------------------------------------------------------------


@method(
    "accumulate",
    "autocast",
    "join_uneven_inputs",
    "main_process_first",
    "local_main_process_first",
    "profile",
)
def manager(call: Call) -> Value | None:
    """Contexts of ``Accelerator``; none of them keeps what it is given."""
    return instance(call) if isinstance(call.receiver, Instance) and _is_built(call) else None


def _is_built(call: Call) -> bool:
    return made_by(call.receiver, _ACCELERATE)


@method("register_for_checkpointing", "free_memory", "clear")
def keep(call: Call) -> Value | None:
    """The accelerator keeps, or lets go of, the objects."""
    if not _is_built(call):
        return None
    call.escape_arguments()
    return fresh(call)
