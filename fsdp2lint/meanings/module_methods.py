"""What the methods of ``nn.Module`` do: those that return the module, walk it, or run it.

Source: torch/nn/modules/module.py.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.paths import along, words
from fsdp2lint.meanings.registry import method
from fsdp2lint.meanings.results import each_choice, fresh, nothing
from fsdp2lint.model.events import Forward, Moved
from fsdp2lint.model.values import (
    Container,
    External,
    Instance,
    Literal,
    Module,
    Not,
    Optimizer,
    Parameters,
    Part,
    StateDict,
    Super,
    Unknown,
    Value,
    Wrapped,
)

_MOVES = ("to", "cuda", "cpu", "xpu", "half", "bfloat16", "float", "double", "type", "to_empty")


@method(*_MOVES)
def move(call: Call) -> Value | None:
    """``.to`` and its like change a module in place and return it; of a tensor they make another one."""
    receiver = call.receiver
    if receiver is None or not _may_be_module(receiver):
        return None
    if _is_tensor(receiver):
        return Part(receiver, (f"{call.name}()",))
    if call.name == ".to_empty":
        call.use_as_module(receiver)
    for one in call.each(receiver):
        if call.is_module(one):
            to = (*call.args, *call.keywords.values())
            call.emit(Moved, module=one, how=call.name[1:], to=to)
    return receiver


def _is_tensor(value: Value) -> bool:
    """An element of parameters, what torch's layers call their tensors, or what its functions make."""
    if isinstance(value, Not):
        return True  # `labels != -100`
    if not isinstance(value, Part):
        return False
    if isinstance(value.owner, Parameters) or value.name in ("weight", "bias", "data", "grad"):
        return True
    made: Value = value
    while isinstance(made, Part) and isinstance(made.key, tuple) and made.key[0] != "call":
        made = made.owner
    owner = made.owner
    return isinstance(owner, External) and owner.name in _MAKERS


_MAKERS = frozenset(
    f"torch.{name}"
    for name in "arange as_tensor cos empty eye full linspace logspace normal ones outer rand randint randn "
    "randperm sin tensor zeros".split()
)
"""Functions that return a tensor (https://docs.pytorch.org/docs/stable/torch.html, creation ops)."""


def _may_be_module(value: Value) -> bool:
    """Not for what is certainly something else: these have other methods of the same names."""
    if isinstance(value, Instance):
        return isinstance(value, Module)
    return not isinstance(value, Literal | Container | Optimizer | StateDict | Parameters | Super)


@method("train", "eval", "requires_grad_", "share_memory")
def switch(call: Call) -> Value | None:
    """These return the module they are called on; of something not known, that is what is left to assume."""
    receiver = call.receiver
    if receiver is None or not (call.is_module(receiver) or isinstance(receiver, Part | Unknown)):
        return None
    kept = any(isinstance(v, Optimizer) or call.is_module(v) for v in call.args)
    return None if kept else receiver


@method(
    "zero_grad", "compile_submodules", "gradient_checkpointing_enable", "enable_input_require_grads"
)
def quiet(call: Call) -> Value | None:
    """Methods of a module that change nothing of what the trace records."""
    return nothing(call) if call.is_module(call.receiver) else None


@method("apply")
def apply(call: Call) -> Value | None:
    """``apply(fn)`` calls ``fn`` with every submodule, children first, and returns the module."""
    receiver, function = call.receiver, call.get(0, "fn")
    if receiver is None or function is None or not call.is_module(receiver):
        return None
    for one in call.machine.elements(receiver.part(".modules()"), call.site):
        call.run(function, one)
    return receiver


@method("modules", "children", "named_modules", "named_children", "buffers", "named_buffers")
def parts(call: Call) -> Value | None:
    """What iterates over the parts of a module; only modules have these methods."""
    receiver = call.receiver
    if receiver is None or isinstance(receiver, Container | Literal | Super):
        return None
    for one in call.each(receiver):
        if isinstance(one, Part | Unknown):
            call.use_as_module(one)
    return each_choice(receiver, lambda one: one.part(f"{call.name}()"))


@method("get_submodule", "get_parameter", "get_buffer")
def get_part(call: Call) -> Value | None:
    """``get_submodule("layers.0")`` and ``get_submodule(f"layers.{i}")`` follow a dotted path."""
    receiver = call.receiver
    if receiver is None or not (call.is_module(receiver) or isinstance(receiver, Part | Unknown)):
        return None
    call.use_as_module(receiver)
    path = words(call, call.get(0, "target"))
    if path is None:
        return each_choice(receiver, lambda one: one.part(f"{call.name}(…)"))
    return along(call, receiver, path)


@method("forward")
def forward(call: Call) -> Value | None:
    """``module.forward(x)`` computes without the hooks that ``module(x)`` runs (``Module._call_impl``)."""
    receiver = call.receiver
    if receiver is None or isinstance(receiver, Super) or not call.is_module(receiver):
        return None
    result: Value | None = None
    for one in call.each(receiver):
        call.emit(Forward, module=one, how="forward")
        result = call.machine.enter_forward(one, call.args, call.keywords, call.site)
    return result if result is not None else fresh(call)


@method("generate")
def generate(call: Call) -> Value | None:
    """``generate`` of transformers' ``GenerationMixin`` runs forwards of the module's own ``forward``."""
    receiver = call.receiver
    if receiver is None or not isinstance(receiver, Module | Wrapped | Part):
        return None
    if not call.is_module(receiver):
        return None
    for one in call.each(receiver):
        call.emit(Forward, module=one, how="generate")
    return fresh(call)
