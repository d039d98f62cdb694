"""Lists, tuples, sets and dictionaries as they are written, and writing entries into them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.interpret.handlers import handles
from fsdp2lint.interpret.imports import module_of_names
from fsdp2lint.model.events import Assigned, Called
from fsdp2lint.model.guards import ALWAYS
from fsdp2lint.model.memory import EVERYWHERE, entries_of_one
from fsdp2lint.model.trace import options, same
from fsdp2lint.model.values import (
    Container,
    Either,
    External,
    Literal,
    Module,
    StateDict,
    Value,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.model.guards import Guards


@handles(cst.List, cst.Tuple, cst.Set)
def sequence(machine: Machine, node: cst.List | cst.Tuple | cst.Set) -> Value:
    values: list[Value] = []
    open_ = False
    for element in node.elements:
        value = machine.eval(element.value)
        if not isinstance(element, cst.StarredElement):
            values.append(value)
        elif isinstance(value, Container) and value.kind != "dict":
            values.extend(v for _, v in machine.memory.entries(value, machine.here))
            open_ = open_ or value.open
        else:
            values.extend(machine.elements(value, machine.site(element)))
            open_ = True
    return machine.container(type(node).__name__.lower(), values, open_)


@handles(cst.Dict)
def dictionary(machine: Machine, node: cst.Dict) -> Value:
    made = Container("dict")
    if node.elements and all(isinstance(e, cst.StarredDictElement) for e in node.elements):
        given = [machine.eval(element.value) for element in node.elements]
        state = _state_among(given)
        if state is not None:
            return filled(machine, state, [v for v in given if v is not state], node)
        for value in given:
            spread_into(machine, made, value)
        return made
    for element in node.elements:
        if isinstance(element, cst.StarredDictElement):
            spread_into(machine, made, machine.eval(element.value))
        elif isinstance(element, cst.DictElement):
            key = machine.eval(element.key)
            store(machine, made, key, machine.eval(element.value))
    return made


def _state_among(values: Sequence[Value]) -> StateDict | None:
    """The state dict that others are merged with; None where there is none, or more than one."""
    states = [one for one in values if isinstance(one, StateDict)]
    return states[0] if len(states) == 1 else None


def filled(
    machine: Machine, state: StateDict, others: Iterable[Value], node: cst.CSTNode
) -> StateDict:
    """A state dict with the entries of others (``{**state, **other}``, ``state | other``): as by ``update``."""
    for other in others:
        moment = machine.moment(machine.site(node))
        machine.record(Called(moment, ".update", state, (other,), {}, False, machine.literal(None)))
    return state


def spread_into(machine: Machine, made: Container, value: Value) -> None:
    """Add the entries of another dictionary (``**value``, ``update(value)``)."""
    if isinstance(value, Container) and value.kind == "dict":
        for key, entry in list(machine.memory.entries(value, machine.here)):
            machine.memory.write(made, key, machine.here, entry)
        made.open = made.open or value.open
    elif isinstance(value, Either) and all(map(_is_dictionary, options(value))):
        _spread_one_of(machine, made, value)
    else:
        made.open = True
        machine.memory.hold(made, value)
        machine.memory.write(made, ("of", value), machine.here, value)


def _is_dictionary(value: Value) -> bool:
    return isinstance(value, Container) and value.kind == "dict"


def _spread_one_of(machine: Machine, made: Container, value: Either) -> None:
    """Add the entries of one of several dictionaries: what only some of them hold may be missing."""
    each: list[tuple[Guards, dict[Hashable, Value]]] = []
    for guards, one in value.options:
        if isinstance(one, Container):
            each.append((guards, dict(machine.memory.entries(one, machine.here))))
            made.open = made.open or one.open
    for key, entry in entries_of_one(each, value.part):
        machine.memory.write(made, key, machine.here, entry)


def _making_a_module(machine: Machine) -> bool:
    """Whether the constructor of a module runs, which fills its lists and dictionaries of submodules."""
    return any(
        frame.function is not None
        and frame.function.name == "__init__"
        and frame.receiver is not None
        and machine.is_module(frame.receiver)
        for frame in machine.frames
    )


def _loosen(machine: Machine, table: Container) -> None:
    """The key may be any of those that are known: ``settings[name] = value`` for what the command line gives.

    The constants of a table are not known any more; what else it holds is taken to be of another kind than what is stored.
    """
    for name, entry in machine.memory.entries(table, machine.here) if table.kind == "dict" else ():
        if isinstance(name, str) and isinstance(entry, Literal):
            machine.memory.write(table, name, machine.here, table.part(name))


def each_apart(machine: Machine, value: Either) -> Iterator[Value]:
    """Each of the values that one can be; what is done with it is done where it is that one."""
    here = machine.here
    for guards, one in value.apart():
        machine.here = here.and_(guards)
        if not machine.here.impossible:
            yield one
    machine.here = here


def store(
    machine: Machine, owner: Value, key: Value, value: Value, node: cst.CSTNode | None = None
) -> None:
    """``owner[key] = value``; at ``node`` for all to see where it is ``os.environ["MASTER_PORT"] = …``."""
    if isinstance(owner, Either) and not any(isinstance(one, Module) for one in options(owner)):
        for one in each_apart(machine, owner):
            store(machine, one, key, value, node)
        return
    if isinstance(owner, External) and node is not None:
        moment, name = machine.moment(machine.site(node)), f"{owner.name}.__setitem__"
        nothing = machine.literal(None)
        machine.record(Called(moment, name, None, (key, value), {}, False, nothing))
    module = module_of_names(owner)
    if module is not None and isinstance(key, Literal):
        module.write(machine, str(key.value), value)
        return
    if module is not None:
        module.loosen(machine, machine.site(node or machine.frame.source.tree))
        return
    if isinstance(owner, Module):
        if node is not None and same(machine.item(owner, key, machine.site(node)), value):
            return  # ``model.layers[i] = fully_shard(model.layers[i])`` is the layer that was there
        seat = f"[{key.value!r}]" if isinstance(key, Literal) else "[*]"
        value.sit(owner, seat)
        if node is not None and not _making_a_module(machine):
            machine.record(Assigned(machine.moment(machine.site(node)), owner, seat, value))
    everywhere = machine.memory.read(owner, EVERYWHERE, machine.here)
    if everywhere is not None:
        mixed = Either(((ALWAYS, value), (ALWAYS, everywhere)))
        machine.memory.write(owner, EVERYWHERE, machine.here, mixed)
    if isinstance(key, Literal):
        machine.memory.write(owner, f"[{key.value!r}]", machine.here, value)
        return
    if isinstance(owner, Container):
        owner.open = True
        _loosen(machine, owner)
    machine.memory.write(owner, ("[]", key), machine.here, value)
