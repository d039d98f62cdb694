"""Other wrappers: DDP, compile, activation checkpointing, tensor parallelism, averaging.

Sources: torch/nn/parallel/distributed.py, torch/__init__.py (``compile``), torch/nn/modules/module.py
(``Module.compile``), torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py,
torch/distributed/_composable/{checkpoint_activation,replicate}.py, torch/distributed/tensor/parallel/api.py,
torch/optim/swa_utils.py.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import nothing
from fsdp2lint.model.events import Collective, Wrapping
from fsdp2lint.model.values import (
    Bound,
    Class,
    External,
    Function,
    Literal,
    Module,
    Optimizer,
    Part,
    Partial,
    Value,
    Wrapped,
)

_CHECKPOINT = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper."


def _wrap(call: Call, by: str) -> Value | None:
    """A new object around the first argument."""
    module = call.get(0, "module") or call.get(0, "model")
    if module is None or isinstance(module, Literal):
        return None
    options = {k: v for k, v in call.keywords.items() if k not in ("module", "model")}

    def one(inner: Value) -> Value:
        if by == "compile" and _is_function(inner):
            return inner  # `optimizer.step = torch.compile(optimizer.step)`
        made = Wrapped(inner, by)
        call.emit(Wrapping, module=inner, by=by, result=made, options=options)
        return made

    return call.machine.spread(module, one)


def _in_place(call: Call, by: str, module: Value | None) -> None:
    """The module stays the same object."""
    for one in call.each(module):
        call.emit(Wrapping, module=one, by=by, result=one, options=call.keywords)


@calls("torch.nn.parallel.DistributedDataParallel")
def ddp(call: Call) -> Value | None:
    """DDP broadcasts the parameters of rank 0 when it is built."""
    made = _wrap(call, "ddp")
    if made is not None:
        call.emit(Collective, name=call.name, about=call.get(0, "module"))
    return made


@calls("torch.nn.parallel.DataParallel")
def data_parallel(call: Call) -> Value | None:
    """One process, several devices."""
    return _wrap(call, "dp")


_IN_PLACE = {
    "torch.distributed._composable.checkpoint": "checkpoint",
    "torch.distributed._composable.replicate": "replicate",
    "torch.distributed.tensor.parallel.parallelize_module": "tp",
}


@calls(*_IN_PLACE)
def wrap_in_place(call: Call) -> Value | None:
    """Composable DDP and recomputing, tensor parallelism: they return the module that they change."""
    module = call.get(0, "module")
    _in_place(call, _IN_PLACE[call.name], module)
    return module


@calls("torch.compile")
def compile_(call: Call) -> Value | None:
    """Around a module a new one (``OptimizedModule``); a function stays what it does; alone it decorates."""
    model = call.get(0, "model")
    if model is None:
        return Partial(call.machine.external(call.name), (), call.keywords, call.open)
    return _wrap(call, "compile")


def _is_function(value: Value) -> bool:
    """Whether a value is no module but what something does: compiled, it does the same."""
    if isinstance(value, Function | Bound | Partial | Class | External):
        return True
    return isinstance(value, Part) and (
        isinstance(value.owner, Optimizer) or value.key == ".forward"
    )


@calls("torch.nn.SyncBatchNorm.convert_sync_batchnorm")
def convert_sync_batchnorm(call: Call) -> Value | None:
    """The module that it is given, with other norms inside."""
    return call.get(0, "module")


@method("compile")
def compile_in_place(call: Call) -> Value | None:
    """``Module.compile()`` compiles the module's call and keeps the object."""
    if call.receiver is None or not call.is_module(call.receiver):
        return None
    _in_place(call, "compile", call.receiver)
    return nothing(call)


@calls(f"{_CHECKPOINT}checkpoint_wrapper", f"{_CHECKPOINT}offload_wrapper")
def checkpoint_wrapper(call: Call) -> Value | None:
    """A ``CheckpointWrapper`` around the module."""
    return _wrap(call, "checkpoint")


@calls(f"{_CHECKPOINT}apply_activation_checkpointing")
def apply_activation_checkpointing(call: Call) -> Value | None:
    """Replaces submodules by their wrappers, in place."""
    _in_place(call, "checkpoint", call.get(0, "model"))
    return nothing(call)


@calls("torch.utils.checkpoint.checkpoint")
def recompute(call: Call) -> Value | None:
    """``checkpoint(function, *args, use_reentrant=…, **kwargs)`` calls ``function``."""
    function = call.get(0, "function")
    if function is None:
        return None
    own = (
        "function",
        "use_reentrant",
        "context_fn",
        "determinism_check",
        "debug",
        "preserve_rng_state",
    )
    keywords = {k: v for k, v in call.keywords.items() if k not in own}
    return call.machine.call(function, call.args[1:], keywords, call.site, call.open)


@calls("torch.optim.swa_utils.AveragedModel")
def averaged_model(call: Call) -> Value | None:
    """Keeps a deep copy of the model."""
    return Module(call.machine.external(call.name), call.site)
