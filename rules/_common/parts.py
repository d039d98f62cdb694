"""Modules as parts of others: what is sharded inside, what came later, what is frozen."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from fsdp2lint.api import (
    Called,
    Either,
    Event,
    Guards,
    Literal,
    Parameters,
    Part,
    StateDict,
    Trace,
    Value,
    excludes_fsdp2,
    once,
    root,
    unwrapped,
)

from .shared import (
    WITH_PARAMETERS,
    Shard,
    cases,
    class_name,
    has_parameters,
    hung_later,
    known_unsharded,
    overlap,
    parts_of,
    sharded,
    shards,
    shards_before,
    together,
    wrapped_by,
)


def sure(event: Event, value: Value | None) -> Iterator[Value]:
    """What ``value`` surely can be at ``event``: no choice that may exclude the way to the event."""
    if value is None:
        return
    choices = value.options if isinstance(value, Either) else ((event.guards, value),)
    yield from (one for guards, one in choices if together(guards, event.guards))


def shard_within(trace: Trace, event: Event, module: Value, guards: Guards) -> Shard | None:
    """A sharding before ``event`` of ``module`` itself or of one of its submodules."""
    whole = unwrapped(module)
    if known_unsharded(guards, whole):
        return None
    for shard in shards_before(trace, event):
        if trace.inside(shard.module, whole) and together(shard.guards, guards):
            if shard.module is whole or not hung_later(trace, event, shard.module):
                return shard
    return None


def holding_shards(trace: Trace, event: Event, value: Value | None) -> tuple[Shard, Value] | None:
    """As `sharded`, also for a module of which a part alone is sharded: some of its parameters are shards."""
    found = sharded(trace, event, value)
    if found is not None or value is None or excludes_fsdp2(event.at.source, event.at.node):
        return found
    for guards, module in cases(event, value):
        shard = None
        if not wrapped_by(module, "ddp", "fsdp1"):
            shard = shard_within(trace, event, module, guards)
        if shard is not None:
            return shard, unwrapped(module)
    return None


COPIES = {"copy.deepcopy": "deepcopy", "torch.optim.swa_utils.AveragedModel": "AveragedModel"}
"""The calls that copy a module whole, and what scripts call them."""


def refused_copy(trace: Trace, called: Called) -> tuple[Shard, str] | None:
    """The sharding of what is copied, or of a module inside it: such a copy raises."""
    value = called.argument(0, "model" if called.name.endswith("AveragedModel") else "x")
    for guards, module in () if value is None else cases(called, value):
        if not wrapped_by(module, "ddp", "fsdp1"):
            shard = shard_within(trace, called, module, guards)
            if shard is not None:
                return shard, module.words()
    return None


def never_copied(trace: Trace, module: Value) -> bool:
    """Whether a module is (in) the copy of a sharded one, so that no run gets beyond the copy."""
    return any(trace.inside(module, unwrapped(copy)) for copy in _refused(trace))


@once
def _refused(trace: Trace) -> tuple[Value, ...]:
    """What the copies that raise would have given."""
    return tuple(c.result for c in trace.calls(*COPIES) if refused_copy(trace, c) is not None)


def loose(trace: Trace, module: Value, shard: Shard) -> bool:
    """Whether ``module`` holds a layer that was built after ``shard`` and that no sharding took since."""
    return any(
        called.order > shard.order
        and has_parameters(trace, called.result, 0)
        and not _taken(trace, called)
        and not frozen(trace, called.result)
        and not reduced_by_hand(trace, called.result)
        for one in below(trace, module)
        for called in trace.giving(one)
    )


def reduced_by_hand(trace: Trace, layer: Value) -> bool:
    """Whether the script reduces gradients of a layer, or of a module around it, over the ranks."""
    for called in trace.calls("torch.distributed.all_reduce", "torch.distributed.all_gather"):
        found = parameter_of(called.arguments[0]) if called.arguments else None
        if found is not None and overlap(trace, found.module, layer) is not None:
            return True
    return False


def _taken(trace: Trace, built: Called) -> bool:
    return any(
        s.order > built.order and trace.inside(built.result, s.module) for s in shards(trace)
    )


def below(trace: Trace, module: Value) -> list[Value]:
    """A module and all submodules that the script has given to it."""
    found: list[Value] = []
    todo = [unwrapped(module)]
    while todo:
        one = todo.pop()
        if one not in found:
            found.append(one)
            todo.extend(parts_of(trace, one))
    return found


def frozen(trace: Trace, module: Value) -> bool:
    """Whether the script switches the gradients of ``module``, or of something in or around it, off."""
    for called in trace.calls(".requires_grad_"):
        on = called.argument(0, "requires_grad")
        if isinstance(on, Literal) and not on.value and _about(trace, called.receiver, module):
            return True
    return any(_about(trace, owner, module) for owner in trace.written(".requires_grad"))


def _about(trace: Trace, value: Value | None, module: Value) -> bool:
    """Whether a module, or a parameter of a module, is one in or around ``module``."""
    while isinstance(value, Part) and overlap(trace, value, module) is None:
        value = value.owner
    if isinstance(value, Parameters):
        value = value.of
    return value is not None and overlap(trace, value, module) is not None


OWN_WEIGHTS = ("weight", "bias")
"""The parameters that the layers of ``torch.nn`` have, by name."""

_KEPT = frozenset(
    f".{name}()"
    for name in "abs clone contiguous detach double exp float log neg pow relu sign sqrt square to".split()
)
_OPERATORS = frozenset(("*", "/", "+", "-", ">", "<", ">=", "<=", "==", "!="))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter (or its gradient) of a module; ``taken`` as for :class:`Parameters`."""

    module: Value
    gradient: bool
    taken: int | None


def parameter_of(tensor: Value) -> Parameter | None:
    """The parameter that ``tensor`` is, element by element."""
    gradient = False
    while isinstance(tensor, Part):
        owner, key = tensor.owner, tensor.key
        of = owner.owner if isinstance(owner, Part) and key == "[1]" else owner
        if isinstance(of, Parameters) and (of is owner or of.named):
            return Parameter(of.of, gradient, of.taken)
        if key in (".weight", ".bias") and layer_with_parameters(owner):
            return Parameter(owner, gradient, None)
        gradient |= key == ".grad"
        if not (key in (".data", ".grad") or _element_by_element(key)):
            return None
        tensor = owner
    return None


def model_of(tensor: Value) -> Value | None:
    """The model whose parameter, or entry of a state dict, a tensor is."""
    parameter = parameter_of(tensor)
    if parameter is not None:
        return parameter.module
    whole = root(tensor)
    return whole.of if isinstance(whole, StateDict) and whole.kind == "model" else None


def layer_with_parameters(value: Value) -> bool:
    """Whether ``value`` is a layer of ``torch.nn`` that has a weight."""
    home, _, name = class_name(value).rpartition(".")
    return home == "torch.nn" and name in WITH_PARAMETERS


def _element_by_element(key: Hashable) -> bool:
    """Whether an operation keeps a tensor sharded as it is."""
    if not isinstance(key, tuple):
        return False
    operation, *operands = key
    if operation in _KEPT:
        return True
    return operation in _OPERATORS and all(isinstance(o, Literal) for o in operands)
