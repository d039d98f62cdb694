"""Objects of frameworks of which nothing more is known, and what several frameworks have in common."""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import family, is_class_name
from fsdp2lint.meanings.optim import optimizer_of_another_package
from fsdp2lint.meanings.results import choices, instance
from fsdp2lint.model.events import Sharded
from fsdp2lint.model.values import Container, Literal, Optimizer, Parameters, Value, unwrapped

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
    """Objects of a framework; models and optimizers among their arguments go out of sight.

    Asked last: whatever else is known of a class comes first.
    """
    if not call.name.startswith(_FRAMEWORKS) or not is_class_name(call.name):
        return None
    found = optimizer_of_another_package(call)
    if found is not None:
        return found
    call.escape_arguments()
    return instance(call)


def shard(call: Call, model: Value | None, *, again: bool = True) -> bool:
    """``fully_shard`` by code out of sight: of the model for certain, of parts of it perhaps.

    The model goes out of sight too. Without ``again`` a model that is sharded already is left alone, as
    accelerate does. False when there is no model.
    """
    found = False
    for one in call.each(model):
        if isinstance(one, Literal | Container):
            continue
        found = True
        call.use_as_module(one)
        if again or not _is_sharded(call, one):
            call.emit(Sharded, modules=(one,), options={}, open=True)
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
