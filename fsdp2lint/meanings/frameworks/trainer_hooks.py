"""What ``Trainer.train`` runs of the script: methods that its class overrides, and callbacks, with the model that it shards.

Sources: transformers/trainer.py (``_prepare_for_training``, ``_run_epoch``, ``training_step``, ``prediction_step``,
``_maybe_log_save_evaluate``, ``_save_checkpoint``, ``save_model``), transformers/trainer_callback.py
(``CallbackHandler.call_event``) (4.57, 5.23).

A method that the class does not override does here what it does there, as far as it comes back to the script:
``training_step`` calls ``compute_loss``, ``_save_checkpoint`` calls ``save_model``, and that calls ``_save``.
"""

from __future__ import annotations

from fsdp2lint.interpret.classes import find
from fsdp2lint.interpret.functions import append, stranger_arguments
from fsdp2lint.meanings.autograd import go_backward
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.frameworks.accelerate import is_left_open, is_unset
from fsdp2lint.meanings.frameworks.objects import renewed, shard
from fsdp2lint.meanings.frameworks.transformers import (
    CALLBACKS,
    configured,
    is_sharded_type,
    is_trainer,
    object_of,
    offloads,
    shards,
    state_dict_type,
    version,
)
from fsdp2lint.meanings.registry import method
from fsdp2lint.meanings.results import choices, constant, fresh, listed, made_by, nothing, setting
from fsdp2lint.model.events import (
    CheckpointTyped,
    Clipped,
    Collective,
    OptimizerBuilt,
    Registered,
    Saved,
    SettingsOpen,
    Stepped,
    Upcast,
    WeightsSkipped,
)
from fsdp2lint.model.values import (
    Class,
    Container,
    Function,
    Instance,
    Literal,
    Optimizer,
    Parameters,
    StateDict,
    Value,
    unwrapped,
)

_SAVING = ".saves a checkpoint"
"""The key that says of a trainer whether its `save_model` is called for a checkpoint, which has the shards too."""
_WITHOUT_VERSION = "its arguments say none, and transformers means version 1 before 5.10 and 2 since then: write `fsdp_version` in the `fsdp_config`"
_UNKNOWN_VERSION = "no version is seen in its `fsdp_config`, which is a file or comes from elsewhere: write `fsdp_version` there"
_WITHOUT_SETTINGS = "its arguments come from elsewhere, and no command or settings file says them: name the file that holds them, too"
_GIVEN = ("processing_class", "tokenizer", "lr_scheduler", "train_dataloader", "eval_dataloader")
"""What every event of a callback gets beside the model and the optimizer."""


@method("train")
def train(call: Call) -> Value | None:
    """Builds the optimizer, shards the model, and runs the hooks in the order of a training."""
    if not is_trainer(call.receiver):
        return None
    call.emit(Collective, name=call.name, about=None)
    me = object_of(call.receiver) or call.receiver
    assert me is not None
    _say_what_is_open(call, me)
    optimizer = _built(call, me)
    model = _prepared(call, me)
    optimizer = _renewed(call, me, optimizer)
    _tell(call, me, model, "on_train_begin", "on_epoch_begin", "on_step_begin")
    _hook(call, me, "training_step", model, call.machine.stranger("inputs"))
    _clip(call, me, model)
    _tell(call, me, model, "on_pre_optimizer_step")
    if optimizer is not None:
        call.emit(Stepped, optimizer=optimizer)
    _tell(call, me, model, "on_optimizer_step", "on_step_end", "on_log")
    if _evaluates(call, me):
        _hook(call, me, "evaluate")
        _tell(call, me, model, "on_evaluate")
    if constant(_argument(call, me, "save_strategy")) != "no":
        kind = state_dict_type(call, me) if shards(call, me) else None
        if isinstance(kind, str) and kind:
            call.emit(CheckpointTyped, kind=kind.upper())
        _hook(call, me, "_save_checkpoint", model, call.machine.literal(None))
        _tell(call, me, model, "on_save")
    _tell(call, me, model, "on_epoch_end", "on_train_end")
    call.escape_arguments()
    return fresh(call)


def _say_what_is_open(call: Call, trainer: Value) -> None:
    """Whether it shards, and by which version, where neither the script nor settings around it say so."""
    args = setting(call, trainer, "args")
    asked = setting(call, args, "fsdp")
    if shards(call, trainer):
        if version(call, trainer) is None:
            unsaid = configured(call, args, "version") is None
            why = _WITHOUT_VERSION if unsaid else _UNKNOWN_VERSION
            call.emit(SettingsOpen, what="the version of FSDP", why=why)
    elif is_left_open(asked) and not (
        is_unset(asked, args) and made_by(args, "transformers.", "trl.")
    ):
        call.emit(SettingsOpen, what="the settings of FSDP", why=_WITHOUT_SETTINGS)


def _clip(call: Call, trainer: Value, model: Value) -> None:
    """Gradients are clipped by ``max_grad_norm``, which is 1 by default."""
    said = constant(_argument(call, trainer, "max_grad_norm"))
    if said in (0, None) or not made_by(setting(call, trainer, "args"), "transformers.", "trl."):
        return
    for one in call.each(model):
        if call.is_module(one):
            call.emit(Clipped, parameters=(call.machine.take(Parameters(one, None)),), module=None)


def _argument(call: Call, trainer: Value | None, name: str) -> Value | None:
    """What the trainer's arguments say."""
    return setting(call, setting(call, trainer, "args"), name)


def _evaluates(call: Call, trainer: Value) -> bool:
    """Whether the training evaluates: by default it does not."""
    names = ("eval_strategy", "evaluation_strategy", "do_eval")
    said = [constant(_argument(call, trainer, name)) for name in names]
    given = [one for one in said if one is not ...]
    if given:
        return any(one not in ("no", False, None) for one in given)
    return not made_by(setting(call, trainer, "args"), "transformers.", "trl.")


def _hook(call: Call, trainer: Value, name: str, *args: Value, **keywords: Value) -> Value:
    """Run a method of a trainer: the script's own, or what it does by default."""
    found = call.machine.get(trainer, name, call.site)
    return call.machine.call(found, args, keywords, call.site)


# -- the model and its optimizer -----------------------------------------------------------------------------------


def _prepared(call: Call, trainer: Value) -> Value:
    """The model as the hooks get it: sharded in place by version 2, else in a wrapper of which nothing more is known."""
    model = setting(call, trainer, "model")
    if model is not None and shards(call, trainer) and version(call, trainer) == 2:
        for name in ("bf16", "fp16"):
            if constant(_argument(call, trainer, name)) is True and call.is_module(model):
                call.emit(Upcast, module=model, by=f"`{name}=True`")
        if shard(call, model, again=False, offload=offloads(call, trainer)):
            for one in call.each(model):
                call.emit(Registered, module=one, method="generate")
            return _remembered(call, trainer, model)
    made = fresh(call, "model")
    call.use_as_module(made)
    return _remembered(call, trainer, made)


def _remembered(call: Call, trainer: Value, model: Value) -> Value:
    call.machine.memory.write(trainer, ".model_wrapped", call.machine.here, model)
    return model


def _built(call: Call, trainer: Value) -> Value | None:
    """What the script's own ``create_optimizer`` builds, before the model is sharded."""
    for name in ("create_optimizer", "create_optimizer_and_scheduler"):
        own = call.machine.method(trainer, name)
        if own is not None:
            made = call.machine.call(own, (), {}, call.site, True)
            return made if isinstance(made, Optimizer) else setting(call, trainer, "optimizer")
    return None


def _renewed(call: Call, trainer: Value, optimizer: Value | None) -> Optimizer | None:
    """The script's optimizer, over the parameters that sharding has made: accelerate puts them in."""
    if not isinstance(optimizer, Optimizer):
        return None
    call.escape(optimizer)
    made = renewed(call, optimizer)
    call.emit(OptimizerBuilt, optimizer=made, over=made.over)
    call.machine.memory.write(trainer, ".optimizer", call.machine.here, made)
    return made


# -- callbacks -------------------------------------------------------------------------------------------------------


@method("add_callback")
def add_callback(call: Call) -> Value | None:
    """Adds a callback, or an object of its class."""
    given = call.get(0, "callback")
    me = object_of(call.receiver)
    if given is None or me is None or not is_trainer(me):
        return None
    known = setting(call, me, CALLBACKS)
    if not isinstance(known, Container):
        known = call.machine.container("list", [])
        call.machine.memory.write(me, f".{CALLBACKS}", call.machine.here, known)
    append(call.machine, known, given)
    call.escape_arguments()
    return nothing(call)


def _tell(call: Call, trainer: Value, model: Value, *events: str) -> None:
    """Run what the callbacks of the script do at some events."""
    given = listed(call, setting(call, trainer, CALLBACKS))
    for event in events:
        for callback in (one for entry in given for one in choices(entry)):
            _call_back(call, trainer, model, callback, event)


def _call_back(call: Call, trainer: Value, model: Value, callback: Value, event: str) -> None:
    machine = call.machine
    if isinstance(callback, Class):
        callback = trainer.keep(("callback", callback), machine.call(callback, (), {}, call.site))
    hook = machine.method(callback, event)
    if hook is None:
        return
    about = [setting(call, trainer, name) or fresh(call) for name in ("args", "state", "control")]
    keywords = {name: fresh(call, name) for name in _GIVEN}
    optimizer = setting(call, trainer, "optimizer") or fresh(call, "optimizer")
    keywords |= {"model": model, "optimizer": optimizer}
    if event in ("on_evaluate", "on_log"):
        keywords["metrics" if event == "on_evaluate" else "logs"] = machine.stranger("metrics")
    machine.call(hook, about, keywords, call.site)


# -- steps -------------------------------------------------------------------------------------------------------------


@method("compute_loss")
def compute_loss(call: Call) -> Value | None:
    """Calls the model with the inputs."""
    if not is_trainer(call.receiver):
        return None
    for model in call.each(call.get(0, "model")):
        if not isinstance(model, Literal):
            call.use_as_module(model)
            call.machine.call(model, _inputs(call, model), {}, call.site)
    loss = fresh(call, "loss")
    if constant(call.get(2, "return_outputs")) is not True:
        return loss
    return call.machine.container("tuple", [loss, fresh(call, "outputs")])


def _inputs(call: Call, model: Value) -> tuple[Value, ...]:
    """What the ``forward`` of a model takes; the trainer hands on the columns of its name."""
    inner = unwrapped(model)
    forward = find(call.machine, inner.cls, "forward") if isinstance(inner, Instance) else None
    if not isinstance(forward, Function):
        return (call.get(1, "inputs") or call.machine.stranger("inputs"),)
    return stranger_arguments(call.machine, forward, 1)


@method("training_step")
def training_step(call: Call) -> Value | None:
    """Computes the loss, and its gradients."""
    me = object_of(call.receiver)
    if me is None or not is_trainer(me):
        return None
    loss = _hook(call, me, "compute_loss", *call.args[:2])
    go_backward(call, loss)
    return fresh(call)


@method("prediction_step")
def prediction_step(call: Call) -> Value | None:
    """Computes the loss and the outputs, without gradients."""
    me = object_of(call.receiver)
    if me is None or not is_trainer(me):
        return None
    _hook(call, me, "compute_loss", *call.args[:2], return_outputs=call.machine.literal(True))
    return call.machine.container(
        "tuple", [fresh(call, name) for name in ("loss", "logits", "labels")]
    )


@method("evaluate", "predict", "evaluation_loop", "prediction_loop")
def evaluate(call: Call) -> Value | None:
    """Every process must come: what they compute is gathered."""
    me = object_of(call.receiver)
    if me is None or not is_trainer(me):
        return None
    call.emit(Collective, name=call.name, about=None)
    own = call.machine.method(me, "prediction_step")
    if own is not None:
        model = call.machine.get(me, "model_wrapped", call.site)
        about = (model, call.machine.stranger("inputs"), call.machine.literal(False))
        call.machine.call(own, about, {}, call.site)
    return fresh(call)


# -- checkpoints ---------------------------------------------------------------------------------------------------------


@method("_save_checkpoint")
def save_checkpoint(call: Call) -> Value | None:
    """Saves the model, then the state of the training: with FSDP all processes write."""
    me = object_of(call.receiver)
    if me is None or not is_trainer(me):
        return None
    machine = call.machine
    machine.memory.write(me, _SAVING, machine.here, machine.literal(True))
    _hook(call, me, "save_model", fresh(call, "output_dir"))
    machine.memory.write(me, _SAVING, machine.here, machine.literal(False))
    if shards(call, me):
        call.emit(Collective, name=call.name, about=None)
    return nothing(call)


@method("save_model")
def save_model(call: Call) -> Value | None:
    """Writes on the main process; FSDP gathers the state from all of them before."""
    me = object_of(call.receiver)
    if me is None or not is_trainer(me):
        return None
    folder = call.get(0, "output_dir") or call.machine.literal(None)
    if not shards(call, me):
        _own_save(call, me, folder)
        return nothing(call)
    call.emit(Collective, name=call.name, about=None)
    if is_sharded_type(state_dict_type(call, me)):
        if constant(call.machine.memory.read(me, _SAVING, call.machine.here)) is not True:
            call.emit(WeightsSkipped, by="SHARDED_STATE_DICT")
        return nothing(call)
    model = setting(call, me, "model")
    if model is not None:
        state = StateDict(model, "model", full=True, offloaded=True, via=call.name, taken=call.now)
        _own_save(call, me, folder, state_dict=state)
    return nothing(call)


def _own_save(call: Call, trainer: Value, folder: Value, **keywords: Value) -> None:
    own = call.machine.method(trainer, "_save")
    if own is not None:
        call.machine.call(own, (folder,), keywords, call.site)


@method("_save")
def save(call: Call) -> Value | None:
    """Writes the state that it is given, or the model's own, by ``save_pretrained``, on the main process."""
    me = object_of(call.receiver)
    if me is None or not is_trainer(me):
        return None
    given = call.get(1, "state_dict")
    model = setting(call, me, "model")
    if given is None or constant(given) is None:
        given = None
    what = given or model
    if what is not None and shards(call, me) and not call.open:
        folder = call.get(0, "output_dir")
        states = call.states(given)
        call.emit(Saved, what=what, via=".save_pretrained", path=folder, states=states)
    return nothing(call)


@method("save_state", "save_metrics", "log_metrics", "log")
def quiet(call: Call) -> Value | None:
    """They write numbers, on the main process."""
    return nothing(call) if is_trainer(call.receiver) else None
