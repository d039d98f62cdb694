"""Objects of frameworks of which nothing more is known, and what several frameworks have in common."""

from __future__ import annotations

from fsdp2lint.interpret.classes import seen_whole
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, is_class_name, last
from fsdp2lint.meanings.optim import optimizer_of_another_package
from fsdp2lint.meanings.results import choices, instance
from fsdp2lint.model.events import Sharded
from fsdp2lint.model.values import (
    Class,
    Container,
    External,
    Function,
    Instance,
    Literal,
    Module,
    Optimizer,
    Parameters,
    Value,
    unwrapped,
)

_FRAMEWORKS = (
    "axolotl.",
    "composer.",
    "deepspeed.",
    "lightning.",
    "peft.",
    "torchtitan.",
    "trl.",
)


@family("")
def framework_object(call: Call) -> Value | None:
    """Objects of a framework; models and optimizers among their arguments escape.

    Asked last: whatever else is known of a class comes first.
    """
    if not call.name.startswith(_FRAMEWORKS) or not is_class_name(call.name):
        return None
    found = optimizer_of_another_package(call)
    if found is not None:
        return found
    call.escape_arguments()
    return instance(call)


_OFFLOAD = "torch.distributed.fsdp.CPUOffloadPolicy"

_COMPOSED = ("Transformer", "MultiheadAttention")
"""Modules of torch that hold others, by the start of their names."""


def layer_classes(call: Call, model: Value) -> frozenset[str] | None:
    """The names of the classes of a model and of all modules in it; None when some of them are not known."""
    found: set[str] = set()
    todo, seen = [model], set[Value]()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        name = _layer(call, one)
        if not name:
            return None
        found.add(name)
        for _, held in call.machine.memory.entries(one, call.machine.here):
            for value in choices(held):
                if isinstance(value, Module):
                    todo.append(value)
                elif not isinstance(value, Literal | Container | Parameters | Function):
                    return None
    return frozenset(found)


def _layer(call: Call, one: Value) -> str:
    """The name of a module's class; empty when it may hold modules that are not seen."""
    if not isinstance(one, Module) or one in call.machine.memory.foreign:
        return ""
    if isinstance(one.cls, Class):
        return one.cls.name if seen_whole(one.cls) else ""
    name = one.cls.name if isinstance(one.cls, External) else ""
    leaf = name.startswith("torch.nn.") and not last(name).startswith(_COMPOSED)
    return last(name) if leaf else ""


def shard(call: Call, model: Value | None, *, again: bool = True, offload: bool = False) -> bool:
    """``fully_shard`` by unresolved code: of the model for certain, of parts of it perhaps.

    The model escapes too. Without ``again`` a model that is sharded already is left alone, as
    accelerate does. False when there is no model.
    """
    found = False
    for one in call.each(model):
        if isinstance(one, Literal | Container):
            continue
        found = True
        call.use_as_module(one)
        if again or not _is_sharded(call, one):
            policy = Instance(call.machine.external(_OFFLOAD), call.site)
            given: dict[str, Value] = {"offload_policy": policy} if offload else {}
            call.emit(Sharded, modules=(one,), options=given, open=True)
        call.escape(one)
    return found


def _is_sharded(call: Call, model: Value) -> bool:
    """Whether ``fully_shard`` may have been applied to the model before."""
    inner = unwrapped(model)
    earlier = call.machine.trace.of(Sharded)
    return any(
        unwrapped(m) is inner for e in earlier for given in e.modules for m in choices(given)
    )


def renewed(call: Call, optimizer: Optimizer) -> Optimizer:
    """The same optimizer over the parameters that its models have now."""
    over = tuple(call.machine.take(Parameters(old.of, None)) for old in optimizer.over)
    return Optimizer(optimizer.cls, over)
