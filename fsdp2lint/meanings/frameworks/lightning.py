"""Lightning's ``Trainer``: calls the hooks of a ``LightningModule`` and steps its optimizers.

Sources: lightning/pytorch/trainer/trainer.py (``_run``), lightning/pytorch/strategies/model_parallel.py and
"LightningModule: hooks" of its documentation (2.6): ``configure_model`` comes before the strategy is set up, whose
setup calls ``configure_optimizers``; ``on_fit_start`` comes after it. lightning/pytorch/trainer/connectors/accelerator_connector.py
and lightning/fabric/connector.py for the precisions.
"""

from __future__ import annotations

from fsdp2lint.meanings.autograd import go_backward
from fsdp2lint.meanings.call import MAX_DEPTH, Call
from fsdp2lint.meanings.frameworks.accelerate import launched_version
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import (
    choices,
    constant,
    fresh,
    instance,
    is_a,
    made_by,
    nothing,
    setting,
)
from fsdp2lint.model.events import AskedOldVersion, Collective, Refused, Stepped
from fsdp2lint.model.values import (
    Class,
    Container,
    External,
    Instance,
    Optimizer,
    Value,
    lineage,
    outside,
)

_TRAINER = "lightning.pytorch.Trainer"
_MODULES = ("lightning.pytorch.LightningModule", "lightning.pytorch.core.LightningModule")

_ALL_BASES = {*_MODULES, "builtins.object", "torch.nn.Module", "abc.ABC"}
_MODEL_PARALLEL = tuple(
    f"lightning.{home}.strategies.ModelParallelStrategy" for home in ("pytorch", "fabric")
)
_FSDP1 = tuple(f"lightning.{home}.strategies.FSDPStrategy" for home in ("pytorch", "fabric"))
_FSDP1_WORDS = ("fsdp", "fsdp_cpu_offload")
_REFUSED_PRECISIONS = ("16", "16-mixed", "64", "64-true")
"""Words and numbers for precisions that Lightning has, and its FSDP2 has not."""

BEFORE = ("prepare_data", "setup", "configure_model")
FITTING = (
    *("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start"),
    "training_step",
)
AFTER = (
    *("on_train_batch_end", "validation_step", "on_validation_epoch_end", "on_train_epoch_end"),
    *("on_save_checkpoint", "on_train_end", "on_fit_end"),
)
HOOKS = (*BEFORE, "configure_optimizers", *FITTING, *AFTER)
"""What ``Trainer.fit`` calls, in its order."""


def hooks_of(cls: Value) -> tuple[str, ...]:
    """The methods of a class that a framework calls in an order of its own; none for other classes."""
    named = {base.name for base in lineage(cls) if isinstance(base, External)}
    return HOOKS if isinstance(cls, Class) and named & set(_MODULES) else ()


@calls(_TRAINER)
def trainer(call: Call) -> Value | None:
    """``Trainer(strategy=…, precision=…)`` keeps both as they are."""
    ask_version(call, call.keywords.get("strategy"))
    refuse_precision(call, call.keywords.get("strategy"), "Trainer")
    call.escape_arguments()
    return instance(call)


def ask_version(call: Call, strategy: Value | None) -> None:
    """Lightning has FSDP1 as ``FSDPStrategy``, also by a word, and FSDP2 as ``ModelParallelStrategy``."""
    for one in choices(strategy):
        if made_by(one, *_FSDP1) or constant(one) in _FSDP1_WORDS:
            call.emit(AskedOldVersion, framework="Lightning")
            return


def refuse_precision(call: Call, strategy: Value | None, of: str) -> None:
    """``_validate_precision_choice`` raises a ValueError for a precision that ``ModelParallelStrategy`` does not have."""
    given = str(constant(call.keywords.get("precision")))
    if made_by(strategy, *_MODEL_PARALLEL) and given in _REFUSED_PRECISIONS:
        why = f"`ModelParallelStrategy` does not support `{of}(precision={given})`"
        call.emit(Refused, by="Lightning", why=why)


@method("fit")
def fit(call: Call) -> Value | None:
    """``Trainer.fit(module)`` runs the module's hooks, steps its optimizers, and keeps the module."""
    if not is_a(call.receiver, _TRAINER):
        return None
    for one in call.each(call.get(0, "model")):
        _refuse(call, one)
        _fit(call, one)
    call.escape_arguments()
    return nothing(call)


def _fit(call: Call, module: Value) -> None:
    """The hooks of a module, and the steps of its optimizers."""
    for name in BEFORE:
        call.escape(_hook(call, module, name))
    built = _hook(call, module, "configure_optimizers")
    optimizers = _optimizers(call, built, 0)
    if not optimizers:
        call.escape(built)
    for name in FITTING:
        result = _hook(call, module, name)
    _step(call, module, result, optimizers)
    for name in AFTER:
        call.escape(_hook(call, module, name))


@calls("lightning.pytorch.cli.LightningCLI")
def cli(call: Call) -> Value | None:
    """``LightningCLI(Model)`` builds the module by a settings file and runs what the command line says, most often ``fit``.

    With ``run=False`` the script itself calls the trainer that it has built (lightning/pytorch/cli.py).
    """
    runs = constant(call.keywords.get("run")) is not False
    for one in call.each(call.get(0, "model_class")) if runs else ():
        if isinstance(one, Class):
            module = call.machine.call(one, (), {}, call.site, True)
            if launched_version(call) == 2:
                _refuse_undefined(call, module)
            _fit(call, module)
    call.escape_arguments()
    return fresh(call)


def _refuse(call: Call, module: Value) -> None:
    """``ModelParallelStrategy.setup`` raises a TypeError for a module that does not define ``configure_model``."""
    strategy = setting(call, call.receiver, "strategy")
    if made_by(strategy, *_MODEL_PARALLEL):
        _refuse_undefined(call, module)


def _refuse_undefined(call: Call, module: Value) -> None:
    if not isinstance(module, Instance):
        return
    bases = {base.name for base in outside(module.cls)}
    defined = call.machine.method(module, "configure_model") is not None
    if isinstance(module.cls, Class) and bases <= _ALL_BASES and not defined:
        why = "`ModelParallelStrategy` wants a `configure_model` in the LightningModule that calls `fully_shard`"
        call.emit(Refused, by="Lightning", why=why, error="TypeError")


def _hook(call: Call, module: Value, name: str) -> Value:
    """What a hook returns; None when the module has no such method that is resolved."""
    hook = call.machine.method(module, name)
    if hook is None:
        return nothing(call)
    return call.machine.call(hook, (), {}, call.site, True)


def _optimizers(call: Call, value: Value, depth: int) -> list[Optimizer]:
    """The optimizers in what ``configure_optimizers`` returned: alone, in a list, under ``"optimizer"``."""
    found: list[Optimizer] = []
    for one in choices(value):
        if isinstance(one, Optimizer):
            found.append(one)
        elif isinstance(one, Container) and depth < MAX_DEPTH:
            for entry in call.items(one):
                found += _optimizers(call, entry, depth + 1)
    return found


def _step(call: Call, module: Value, loss: Value, optimizers: list[Optimizer]) -> None:
    """Automatic optimization: backward of what ``training_step`` returned, and a step of each optimizer."""
    by_hand = setting(call, module, "automatic_optimization")
    if constant(by_hand) is False or not optimizers:
        return
    go_backward(call, loss)
    for optimizer in optimizers:
        call.emit(Stepped, optimizer=optimizer)


@method("validate", "test", "predict")
def evaluate(call: Call) -> Value | None:
    """Sets the module up as ``fit`` does and runs it on data."""
    if not is_a(call.receiver, _TRAINER):
        return None
    for one in call.each(call.get(0, "model")):
        for name in (*BEFORE, f"{call.name[1:]}_step".replace("validate", "validation")):
            call.escape(_hook(call, one, name))
    call.escape_arguments()
    return fresh(call)


@method("save_checkpoint")
def save_checkpoint(call: Call) -> Value | None:
    """Every process must call it, as its documentation says: the strategy gathers or each one writes."""
    if not is_a(call.receiver, _TRAINER):
        return None
    call.emit(Collective, name=call.name, about=None)
    return fresh(call)
