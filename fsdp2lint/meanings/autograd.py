"""Backward passes, gradient clipping, precision contexts.

Sources: torch/_tensor.py, torch/autograd/__init__.py, torch/nn/utils/clip_grad.py, torch/amp/*.py; accelerate's
and Lightning Fabric's ``backward`` and ``clip_grad_norm_`` do the same.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.optim import note_use
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import choices, context, fresh, instance, made_by, nothing
from fsdp2lint.model.events import Backward, Clipped
from fsdp2lint.model.values import (
    Container,
    External,
    Instance,
    Literal,
    Optimizer,
    Super,
    Value,
    Wrapped,
)

_SCALERS = (
    "torch.amp.GradScaler",
    "torch.cuda.amp.GradScaler",
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
)


# -- backward ---------------------------------------------------------------------------------------------


@method("backward")
def backward(call: Call) -> Value | None:
    """``loss.backward()``; ``engine.backward(loss)`` and its like run it on their argument."""
    receiver = call.receiver
    if receiver is None or isinstance(receiver, Super | Literal | Container):
        return None
    engine = isinstance(receiver, Instance | Wrapped | Optimizer | External)
    of = call.args[0] if engine and call.args else receiver
    go_backward(call, of)
    return nothing(call)


@calls("torch.autograd.backward")
def autograd_backward(call: Call) -> Value | None:
    """The same as a function."""
    of = call.get(0, "tensors")
    if of is None:
        return None
    go_backward(call, of)
    return nothing(call)


def go_backward(call: Call, of: Value) -> None:
    """A backward pass, in which the hooks of parameters run: some of them step an optimizer."""
    call.emit(Backward, of=of)
    machine = call.machine
    here = machine.here
    for hook, (guards, parameter) in list(machine.hooks.items()):
        machine.here = here.and_(guards)
        machine.call(hook, (parameter,), {}, call.site)
    machine.here = here


# -- clipping ----------------------------------------------------------------------------------------------


@calls("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")
def clip(call: Call) -> Value | None:
    """Clips the gradients of the parameters that it is given."""
    return clip_gradients(call, call.get(0, "parameters"), call.name.rpartition(".")[2])


@calls("torch.nn.utils.get_total_norm", "torch.nn.utils.clip_grads_with_norm_")
def norm(call: Call) -> Value | None:
    """The two halves of ``clip_grad_norm_`` (2.6 and later)."""
    given = call.get(0, "parameters") or call.get(0, "tensors")
    note_use(call, call.name.rpartition(".")[2], given)
    return fresh(call)


@method("clip_grad_norm_", "clip_grad_value_")
def clip_by_method(call: Call) -> Value | None:
    """``model.clip_grad_norm_(max_norm)`` of FSDP1; ``accelerator.clip_grad_norm_(parameters, max_norm)``.

    Only the wrapper's can do with one argument that is no parameters.
    """
    receiver = call.receiver
    if receiver is None or isinstance(receiver, Super):
        return None
    if call.name == ".clip_grad_value_" and made_by(receiver, "accelerate."):
        return None  # accelerate refuses it with FSDP
    first = call.get(0, "parameters")
    if not call.is_module(receiver):
        holds = first is not None and not isinstance(first, Literal)
        several = call.open or len(call.args) + len(call.keywords) > 1
        if not holds or not (several or call.parameters(first)):
            return None
        return clip_gradients(call, first, call.name[1:])
    for one in call.each(receiver):
        call.emit(Clipped, parameters=(), module=one)
    return fresh(call)


def clip_gradients(call: Call, given: Value | None, by: str) -> Value:
    """That the gradients of some parameters are clipped."""
    note_use(call, by, given)
    call.emit(Clipped, parameters=call.parameters(given), module=None)
    return fresh(call)


# -- precision and gradient modes --------------------------------------------------------------------------------


@calls(*_SCALERS)
def scaler(call: Call) -> Value | None:
    """A gradient scaler holds no parameters until it is asked to step."""
    return instance(call)


@method("unscale_", "update", "get_scale", "scale", "is_enabled")
def scaler_method(call: Call) -> Value | None:
    """None of these keeps what it is given."""
    if not any(made_by(one, *_SCALERS) for one in choices(call.receiver)):
        return None
    first = call.get(0, "outputs")
    return first if call.name == ".scale" and first is not None else nothing(call)


@calls(
    "torch.amp.autocast",
    "torch.cuda.amp.autocast",
    "torch.cpu.amp.autocast",
    "torch.no_grad",
    "torch.enable_grad",
    "torch.inference_mode",
    "torch.set_grad_enabled",
    "torch.autograd.graph.save_on_cpu",
    "torch.autograd.set_detect_anomaly",
    "torch.autograd.detect_anomaly",
    "transformer_engine.pytorch.autocast",
    "transformer_engine.pytorch.fp8_autocast",
)
def mode(call: Call) -> Value | None:
    """A context manager, found again in ``Moment.within``; as a decorator it is one as well."""
    made = context(call)
    for index, value in enumerate(call.args):
        made.keep(f".argument{index}", value)
    return made


@calls("torch.device")
def device(call: Call) -> Value | None:
    """Equal devices are one value; also a context manager (``with torch.device("meta"):``)."""
    operands = (*call.args, *call.keywords.values())
    external = call.machine.external(call.name)
    made = external.keep(("call", *operands), instance(call))
    for index, value in enumerate(call.args):
        made.keep(f".argument{index}", value)
    return made
