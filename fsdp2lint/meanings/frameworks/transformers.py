"""The ``Trainer`` of transformers, and those of TRL and others that are derived from it.

Sources: transformers/trainer.py (``save_model``, ``_inner_training_loop``), transformers/training_args.py
(``_process_fsdp_args``), trl/models/{utils,modeling_base}.py.

A trainer keeps its model. Whether it shards is known when its arguments say ``fsdp=…`` by a constant, and that it
shards by ``fully_shard`` when their ``fsdp_config`` says version 2: what the default is depends on the release.
"""

from __future__ import annotations

import re

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, is_class_name, last
from fsdp2lint.meanings.frameworks.accelerate import (
    is_left_open,
    is_unset,
    launch,
    launched_version,
    multiply,
    on_nccl,
)
from fsdp2lint.meanings.modules import module
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import (
    choices,
    constant,
    fresh,
    instance,
    made_by,
    nothing,
    setting,
)
from fsdp2lint.model.events import AskedOldVersion, Overruled, Refused
from fsdp2lint.model.values import Container, Instance, Literal, Optimizer, Super, Value, outside

_HOMES = ("transformers.", "trl.")
_TRAINER = re.compile(r"(transformers|trl|sentence_transformers|axolotl)\.(\w+\.)*\w*Trainer")


CALLBACKS = "callbacks given"
"""Under which name a trainer keeps its callbacks: no attribute of it is called so."""


@family(*_HOMES)
def trainer(call: Call) -> Value | None:
    """A trainer gets the model; its arguments can be asked later what they say."""
    if not _TRAINER.fullmatch(call.name):
        return None
    made = instance(call)
    for name, value in _kept(call).items():
        made.keep(f".{name}", value)
    _begin(call, made)
    return made


@method("__init__")
def inherited(call: Call) -> Value | None:
    """``super().__init__(…)`` of a trainer of the project."""
    made = object_of(call.receiver)
    if made is None or made is call.receiver or not is_trainer(made):
        return None
    for name, value in _kept(call).items():
        call.machine.memory.write(made, f".{name}", call.machine.here, value)
    _begin(call, made)
    return nothing(call)


def _begin(call: Call, trainer: Value) -> None:
    """What a trainer raises when it is built, and what it has from then on (``__init__``)."""
    _refuse(call, trainer)
    machine = call.machine
    for args in choices(setting(call, trainer, "args")):
        args.keep(".should_save", machine.main_rank("global"))
    accelerator = Instance(machine.external("accelerate.Accelerator"), call.site)
    if shards(call, trainer):
        plugin = Instance(machine.external("accelerate.FullyShardedDataParallelPlugin"), call.site)
        known = version(call, trainer)
        if known == 1 and not is_left_open(setting(call, setting(call, trainer, "args"), "fsdp")):
            call.emit(AskedOldVersion, framework="the Trainer")
        if known is not None:
            plugin.keep(".fsdp_version", machine.literal(known))
        if offloads(call, trainer):
            plugin.keep(".cpu_offload", machine.literal(True))
            _start_group(call, trainer)
        accelerator.keep(".fsdp_plugin", plugin)
        trainer.keep(".is_fsdp_enabled", machine.literal(True))
        trainer.keep(".is_deepspeed_enabled", machine.literal(False))
    trainer.keep(".accelerator", accelerator)
    trainer.keep(".state", Instance(machine.external("transformers.TrainerState"), call.site))
    trainer.keep(".control", Instance(machine.external("transformers.TrainerControl"), call.site))


def _start_group(call: Call, trainer: Value) -> None:
    """The arguments of a training start the group by the backend that they name, which is NCCL on GPUs (``_setup_devices``)."""
    args = setting(call, trainer, "args")
    backend = setting(call, args, "ddp_backend")
    left = is_unset(backend, args) or constant(backend) in (None, "nccl")
    if (
        version(call, trainer) == 2
        and left
        and constant(setting(call, args, "use_cpu")) is not True
    ):
        on_nccl(call, "the Trainer")


def _refuse(call: Call, trainer: Value) -> None:
    """What a trainer raises a ValueError for when it is built (``create_accelerator_and_postprocess``)."""
    args = setting(call, trainer, "args")
    if shards(call, trainer) and any(constant(one) is not None for one in _optimizers(call)):
        why = "with FSDP, it builds the optimizer itself: override `create_optimizer` in a subclass"
        call.emit(Refused, by="the Trainer", why=why, error="RuntimeError")
    known = launch(call) if is_left_open(setting(call, args, "fsdp")) else None
    if not made_by(args, *_HOMES):
        if known is not None and known.activation_checkpointing and known.gradient_checkpointing:
            _refuse_twice(call, "gradient_checkpointing", "launch's settings")
        return
    if known is None and not _asks(call, setting(call, args, "fsdp")):
        return
    _overruled(call, args)
    if (started := launch(call)) is not None:
        multiply(call, args, started)

    def said(name: str) -> bool:
        return constant(setting(call, args, name)) is True

    recomputed = configured(call, args, "activation_checkpointing") is True
    if known is not None:
        recomputed = known.activation_checkpointing
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        if said(name) and recomputed:
            _refuse_twice(call, name, "fsdp_config" if known is None else "launch's settings")
    if said("save_only_model") and said("load_best_model_at_end"):
        why = "with FSDP, `save_only_model` and `load_best_model_at_end` exclude each other"
        call.emit(Refused, by="the Trainer", why=why)
    elif said("save_only_model") and is_sharded_type(state_dict_type(call, trainer)):
        why = "with FSDP, `save_only_model` and SHARDED_STATE_DICT exclude each other"
        call.emit(Refused, by="the Trainer", why=why)


def _optimizers(call: Call) -> list[Value]:
    """The optimizer and the schedule in ``optimizers=(…)``, as far as they are known."""
    given = call.keywords.get("optimizers")
    entries = call.items(given) if isinstance(given, Container) else []
    return [one for one in entries if isinstance(one, Literal | Optimizer | Instance)]


def _overruled(call: Call, args: Value | None) -> None:
    """What the ``fsdp_config`` says otherwise than the launch: with ``fsdp`` the Trainer builds a plugin of its own."""
    known = launch(call)
    if known is None or is_left_open(setting(call, args, "fsdp")):
        return
    for name, wanted in known.named:
        said = configured(call, args, name.removeprefix("fsdp_"))
        if isinstance(said, str | int) and str(said).upper() != wanted.upper():
            call.emit(
                Overruled,
                by="the fsdp_config",
                name=name,
                script=str(said),
                launch=wanted,
                settings=known.settings,
            )


def _refuse_twice(call: Call, name: str, where: str) -> None:
    why = f"`{name}` and the `activation_checkpointing` of the {where} are both on"
    call.emit(Refused, by="the Trainer", why=why)


def configured(call: Call, args: Value | None, name: str) -> object:
    """The constant under a key of the ``fsdp_config``, with or without its prefix.

    None when it surely has no such key; Ellipsis when the value is not known.
    """
    config = setting(call, args, "fsdp_config")
    if is_unset(config, args) and made_by(args, *_HOMES):
        return None
    if not isinstance(config, Container) or config.open:
        return None if constant(config) is None else ...
    for key, value in call.machine.memory.entries(config, call.machine.here):
        if key in (f"['fsdp_{name}']", f"['{name}']"):
            return constant(value)
    return None


def offloads(call: Call, trainer: Value | None) -> bool:
    """Whether the arguments of a trainer that shards keep the parameters on the CPU: by a word of ``fsdp``, or in its config."""
    args = setting(call, trainer, "args")
    asked = setting(call, args, "fsdp")
    if is_left_open(asked):
        return (known := launch(call)) is not None and known.offload
    words = call.items(asked) if isinstance(asked, Container) else [asked]
    named = any("offload" in str(constant(one)).split() for one in words)
    return named or configured(call, args, "cpu_offload") is True


def is_sharded_type(value: object) -> bool:
    return isinstance(value, str) and value.upper() == "SHARDED_STATE_DICT"


def _kept(call: Call) -> dict[str, Value]:
    """What a trainer is given, by name; all but the arguments of the training escape."""
    for value in (*call.args, *call.keywords.values()):
        if not made_by(value, *_HOMES):
            call.escape(value)
    given = dict(zip(("model", "args"), call.args, strict=False)) | call.keywords
    kept: dict[str, Value] = {name: given[name] for name in ("model", "args") if name in given}
    if "callbacks" in given:
        kept[CALLBACKS] = given["callbacks"]
    model = given.get("model")
    if isinstance(model, Literal) or (model is None and not call.open):
        kept["model"] = _own_model(call, model, given.get("model_init"))
    return kept


def _own_model(call: Call, name: Value | None, init: Value | None) -> Value:
    """The model that a trainer makes: of the name that it is given, or by its ``model_init``."""
    if init is not None and constant(name) in (None, ...):
        return call.run(init)
    made = fresh(call, "model")
    call.use_as_module(made)
    return made


def object_of(value: Value | None) -> Value | None:
    """``super()`` stands for the object."""
    return value.receiver if isinstance(value, Super) else value


def is_trainer(value: Value | None) -> bool:
    """An object of one of these classes, or of one of the project's that is derived from one."""
    made = object_of(value)
    return isinstance(made, Instance) and any(
        _TRAINER.fullmatch(base.name) for base in outside(made.cls)
    )


def state_dict_type(call: Call, trainer: Value | None) -> object:
    """The type of the state dicts that a trainer writes; the fsdp_config comes before the launch."""
    args = setting(call, trainer, "args")
    said = configured(call, args, "state_dict_type")
    known = launch(call)
    if said in (..., None) and known is not None and is_left_open(setting(call, args, "fsdp")):
        return known.state_dict_type
    return said


def shards(call: Call, trainer: Value | None) -> bool:
    """Whether the arguments of a trainer say ``fsdp="full_shard …"``, ``fsdp=True`` or a list of options."""
    asked = setting(call, setting(call, trainer, "args"), "fsdp")
    if is_left_open(asked) and launch(call) is not None:
        return True
    return _asks(call, asked)


def _asks(call: Call, asked: Value | None) -> bool:
    """Whether ``fsdp=…`` is given, and not empty."""
    if isinstance(asked, Container):
        return bool(call.items(asked))
    return isinstance(asked, Literal) and bool(asked.value)


def version(call: Call, trainer: Value | None) -> int | None:
    """What ``fsdp_config={"fsdp_version": …}`` says, or what the project's releases of transformers mean without it."""
    args = setting(call, trainer, "args")
    asked = (setting(call, args, name) for name in ("fsdp_config", "fsdp"))
    if all(is_left_open(one) for one in asked):
        return launched_version(call)
    if isinstance(constant(setting(call, args, "fsdp_config")), str):
        return launched_version(call)  # of a file that the script names
    said = configured(call, args, "version")
    if said is None:
        machine = call.machine
        default = machine.project.hints.trainer_version_of(machine.trace.source.path)
        return default if launched_version(call) in (None, default) else None
    return said if isinstance(said, int) else None


# -- TRL -----------------------------------------------------------------------------------------------------------


@family("trl.")
def value_head_model(call: Call) -> Value | None:
    """``AutoModelForCausalLMWithValueHead.from_pretrained(…)`` and its like are models."""
    cls, _, end = call.name.rpartition(".")
    if end != "from_pretrained":
        cls = call.name
    if not is_class_name(cls) or not last(cls).startswith(("AutoModel", "PreTrainedModel")):
        return None
    return module(call, cls)


@calls("trl.create_reference_model", "trl.models.create_reference_model")
def reference(call: Call) -> Value | None:
    """A frozen copy of the model."""
    model = call.get(0, "model")
    return None if model is None else module(call)


@calls(
    *(
        f"trl.models.{home}prepare_{engine}"
        for home in ("", "utils.")
        for engine in ("deepspeed", "fsdp")
    )
)
def prepare(call: Call) -> Value | None:
    """Shards by what the accelerator's plugin says, and returns the model or a wrapper of it."""
    model = call.get(0, "model")
    if model is None:
        return None
    call.escape_arguments()
    made = fresh(call)
    call.use_as_module(made)
    return made
