"""What an assignment does to its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import libcst as cst

from fsdp2lint.interpret.attributes import entry_method
from fsdp2lint.interpret.displays import store
from fsdp2lint.interpret.scopes import name_value
from fsdp2lint.interpret.unseen import as_it_is_called
from fsdp2lint.model.events import Filled
from fsdp2lint.model.trace import options
from fsdp2lint.model.values import (
    Container,
    Module,
    Part,
    Value,
    Wrapped,
    made_like_another,
    of_parameters,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine


def bind(machine: Machine, target: Any, value: Value) -> None:
    """Assign to a target: a name, an attribute, an entry, or several at once."""
    kind = type(target)  # libcst's classes are abstract: to ask for instances of them is slow
    if kind is cst.Name:
        value = as_it_is_called(machine, value, target.value)
        name_value(value, target.value)
        machine.frames[-1].scope.write(target.value, machine.here, value)
    elif kind is cst.Attribute:
        owner = machine.eval(target.value)
        machine.set(owner, target.attr.value, value, machine.site(target))
    elif kind is cst.Subscript:
        owner = machine.eval(target.value)
        if any(_is_watched(machine, one) for one in options(owner)):
            machine.record(Filled(machine.moment(machine.site(target)), owner, value))
        for element in target.slice:
            if type(element.slice) is cst.Index:
                key = machine.eval(element.slice.value)
                own = entry_method(machine, owner, "__setitem__")
                if own is None:
                    store(machine, owner, key, value, target)
                else:
                    machine.call(own, (key, value), {}, machine.site(target))
            elif type(owner) is Part:  # `weight.data[:rows] = others`
                machine.memory.write(owner, ("[]", "[:]"), machine.here, value)
    elif kind is cst.Tuple or kind is cst.List:
        _bind_several(machine, target.elements, value)
    elif kind is cst.StarredElement:
        bind(machine, target.value, value)


def _is_watched(machine: Machine, tensor: Value) -> bool:
    """Whether it is written down that entries of a tensor are set: of a parameter, of one like it, or of a buffer."""
    if of_parameters(tensor) or made_like_another(tensor):
        return True
    while isinstance(tensor, Part) and tensor.key == ".data" and tensor.owner is not None:
        tensor = tensor.owner
    return not isinstance(tensor, Container | Module | Wrapped) and any(
        isinstance(one, Module) for one in machine.memory.held_by.get(tensor, ())
    )


def _bind_several(machine: Machine, targets: Sequence[cst.BaseElement], value: Value) -> None:
    site = machine.site(targets[0] if targets else machine.frame.statement or cst.Pass())
    starred = next(
        (i for i, t in enumerate(targets) if isinstance(t, cst.StarredElement)), len(targets)
    )
    anonymous = value.nameless and not value.label and value.seat is None
    for index, target in enumerate(targets):
        if index == starred:
            bind(machine, target.value, _starred(machine, value, index, len(targets) - index - 1))
            continue
        position = index if index < starred else index - len(targets)
        part = machine.item(value, machine.literal(position), site)
        if anonymous and part.owner is value and isinstance(target.value, cst.Name):
            part.label = part.label or target.value.value
        bind(machine, target.value, part)


def _starred(machine: Machine, value: Value, before: int, behind: int) -> Value:
    """What ``*middle`` takes of a sequence."""
    if isinstance(value, Container) and not value.open and value.kind in ("list", "tuple"):
        entries = [v for _, v in machine.memory.entries(value, machine.here)]
        return machine.container("list", entries[before : len(entries) - behind])
    return value.part(f"[{before}:{-behind or ''}]")
