"""Optimizers: which calls build one, and what their methods do.

Sources: torch/optim/optimizer.py (``Optimizer.__init__`` lists the parameters it is given at once),
torch/optim/lr_scheduler.py, and the packages named in :data:`PACKAGES`.
"""

from __future__ import annotations

from functools import cache

import libcst as cst

from fsdp2lint.meanings.call import MAX_DEPTH, Call, keeps_parameters
from fsdp2lint.meanings.families import family, is_class_name, last
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import choices, fresh, instance, name_of, nothing
from fsdp2lint.model.events import OptimizerBuilt, ParametersUsed, Stepped
from fsdp2lint.model.memory import MADE
from fsdp2lint.model.values import (
    Bound,
    Container,
    Instance,
    Optimizer,
    Parameters,
    Part,
    Value,
)
from fsdp2lint.source.walk import walk

PACKAGES = (
    "torch.optim.",
    "torch.distributed.optim.",
    "adam_mini.",
    "apex.optimizers.",
    "bitsandbytes.optim.",
    "came_pytorch.",
    "colossalai.nn.optimizer.",
    "dadaptation.",
    "deepspeed.ops.adam.",
    "deepspeed.ops.lamb.",
    "deepspeed.ops.lion.",
    "fairscale.optim.",
    "galore_torch.",
    "lion_pytorch.",
    "muon.",
    "optimi.",
    "prodigyopt.",
    "pytorch_optimizer.",
    "schedulefree.",
    "timm.optim.",
    "torch_optimizer.",
    "torchao.optim.",
    "torchao.prototype.low_bit_optim.",
    "transformers.optimization.",
)
"""Packages whose classes that take parameters are optimizers."""

CLASSES = frozenset(
    {
        "ASGD",
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "LBFGS",
        "Muon",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
        "SparseAdam",
        "Adafactor",
        "AdamW8bit",
        "Adam8bit",
        "PagedAdamW",
        "PagedAdamW8bit",
        "PagedAdamW32bit",
        "FusedAdam",
        "FusedLAMB",
        "DeepSpeedCPUAdam",
        "Lion",
        "Lamb",
        "ZeroRedundancyOptimizer",
    }
)
"""Class names that mean an optimizer wherever they come from (torch/optim/__init__.py and its drop-in twins)."""

_SCHEDULERS = ("torch.optim.lr_scheduler.", "torch.optim.swa_utils.")


def build(call: Call, cls: Value | None = None) -> Optimizer:
    """An optimizer over the parameters inside its first argument, which it takes now."""
    over = call.parameters(call.get(0, "params") or call.get(0, "parameters"))
    made = Optimizer(cls or call.machine.external(call.name), over)
    call.emit(OptimizerBuilt, optimizer=made, over=over)
    return made


@family(*PACKAGES)
def optimizer(call: Call) -> Value | None:
    """A class of a package of optimizers, except schedulers and helpers."""
    if call.name.startswith(_SCHEDULERS) or not is_class_name(call.name):
        return None
    known = last(call.name) in CLASSES or call.name.startswith("torch.optim.")
    if not known and not _holds_parameters(call):
        return None
    return build(call)


@family("")
def optimizer_of_another_package(call: Call) -> Value | None:
    """A class outside that is given parameters first is an optimizer when its path says so."""
    if not is_class_name(call.name):
        return None
    by_path = "optim" in call.name.rpartition(".")[0]
    if not (by_path or last(call.name) in CLASSES) or not _holds_parameters(call):
        return None
    return build(call)


def _holds_parameters(call: Call) -> bool:
    first = call.get(0, "params")
    return first is not None and _has_parameters(call, first, 0)


def _has_parameters(call: Call, value: Value, depth: int) -> bool:
    """As ``call.parameters``, but without reading any generator."""
    for one in choices(value):
        root = _behind(one)
        if isinstance(root, Parameters):
            return True
        entries = call.items(root) if isinstance(root, Container) and depth < MAX_DEPTH else []
        if any(_has_parameters(call, entry, depth + 1) for entry in entries):
            return True
    return False


def _behind(value: Value) -> Value:
    """The parameters, or the list, of which ``value`` is an element."""
    while isinstance(value, Part) and keeps_parameters(value):
        value = value.owner
    return value


@calls("timm.optim.create_optimizer", "timm.optim.create_optimizer_v2")
def timm_optimizer(call: Call) -> Value | None:
    """Takes the model (or its parameters) first (v2) or second (v1)."""
    over: tuple[Parameters, ...] = ()
    for value in (*call.args[:2], *call.keywords.values()):
        if call.is_module(value):
            over = (call.machine.take(Parameters(value, None)),)
            break
        over = over or call.parameters(value)
    made = Optimizer(call.machine.external(call.name), over)
    call.emit(OptimizerBuilt, optimizer=made, over=over)
    return made


@family(*_SCHEDULERS)
def scheduler(call: Call) -> Value | None:
    """Schedulers hold the optimizer and do nothing to it but set learning rates."""
    return instance(call) if is_class_name(call.name) else None


@family("transformers.", "diffusers.optimization.")
def hf_scheduler(call: Call) -> Value | None:
    """``get_…_schedule…`` return a ``LambdaLR`` (transformers/optimization.py, diffusers/optimization.py)."""
    end = last(call.name)
    if end.startswith("get_") and "schedule" in end:
        return instance(call, "torch.optim.lr_scheduler.LambdaLR")
    return None


@method("step")
def step(call: Call) -> Value | None:
    """``optimizer.step()`` and ``scaler.step(optimizer)`` (torch/amp/grad_scaler.py); schedulers are quiet."""
    first = call.get(0, "optimizer")
    found = False
    for one in (*choices(call.receiver), *choices(first)):
        found = found or isinstance(one, Optimizer)
    if not found:
        return nothing(call) if is_scheduler(call.receiver) else None
    subject = call.receiver if _is_optimizer(call.receiver) else first
    for one in call.each(subject):
        if isinstance(one, Optimizer):
            call.emit(Stepped, optimizer=one)
            _step_what_it_holds(call, one)
    return fresh(call)


def _step_what_it_holds(call: Call, optimizer: Optimizer) -> None:
    """The ``step`` of an optimizer of the project runs where it steps others, by which it does its work."""
    machine = call.machine
    made = machine.memory.read(optimizer, MADE, machine.here)
    own = None if made is None else machine.method(made, "step")
    if isinstance(own, Bound) and _steps_others(own.function.node):
        by_itself = _is_optimizer(call.receiver)  # else by a scaler, which takes the optimizer
        machine.call(own, call.args if by_itself else (), {}, call.site, call.open)


@cache
def _steps_others(node: cst.FunctionDef | cst.Lambda) -> bool:
    called = (one.func for one in walk(node.body) if isinstance(one, cst.Call))
    stepped = [one for one in called if isinstance(one, cst.Attribute) and one.attr.value == "step"]
    return any(
        not isinstance(one.value, cst.Call) for one in stepped
    )  # super().step() is torch's own


def _is_optimizer(value: Value | None) -> bool:
    return any(isinstance(one, Optimizer) for one in choices(value))


def is_scheduler(value: Value | None) -> bool:
    """Whether ``value`` is a learning-rate scheduler."""
    return isinstance(value, Instance) and name_of(value).startswith(_SCHEDULERS)


@method("zero_grad")
def zero_grad(call: Call) -> Value | None:
    """Forgets gradients."""
    return nothing(call) if _is_optimizer(call.receiver) else None


@method("add_param_group")
def add_param_group(call: Call) -> Value | None:
    """The optimizer takes more parameters, now."""
    over = call.parameters(call.get(0, "param_group"))
    for one in call.each(call.receiver):
        if isinstance(one, Optimizer):
            call.emit(OptimizerBuilt, optimizer=one, over=over)
    return nothing(call) if _is_optimizer(call.receiver) else None


def note_use(call: Call, by: str, *values: Value | None) -> None:
    """Write down that parameters taken earlier are used now."""
    earlier = [p for v in values for p in taken_earlier(call, v, 0)]
    if earlier:
        call.emit(ParametersUsed, parameters=tuple(dict.fromkeys(earlier)), by=by)


def taken_earlier(call: Call, value: Value | None, depth: int) -> list[Parameters]:
    """The snapshots inside ``value``; generators that nobody has read yet are none."""
    found: list[Parameters] = []
    for one in choices(value):
        root = _behind(one)
        if isinstance(root, Parameters):
            found += [root] if root.taken is not None else []
        elif isinstance(root, Container) and depth < MAX_DEPTH:
            for entry in call.items(root):
                found += taken_earlier(call, entry, depth + 1)
    return found
