"""Reading and writing attributes and entries."""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import reduce
from typing import TYPE_CHECKING

from fsdp2lint.interpret import classes, conditions, instances
from fsdp2lint.interpret.annotations import stranger_attribute
from fsdp2lint.interpret.displays import each_apart, store
from fsdp2lint.interpret.functions import speaks_of_sharding
from fsdp2lint.interpret.imports import Namespace, module_of_names, one_of_names
from fsdp2lint.interpret.unseen import as_it_is_called
from fsdp2lint.meanings.attributes import attribute as known_attribute
from fsdp2lint.meanings.fsdp1_symbols import lacks
from fsdp2lint.meanings.registry import METHODS
from fsdp2lint.model.events import Assigned, Read, Written
from fsdp2lint.model.guards import ALWAYS, NEVER, Clause, Guards, either
from fsdp2lint.model.memory import EVERYWHERE, MADE, MAX_OPTIONS
from fsdp2lint.model.trace import options, same
from fsdp2lint.model.values import (
    Bound,
    Class,
    Container,
    Default,
    Either,
    External,
    Function,
    Instance,
    Literal,
    Module,
    Optimizer,
    Part,
    Partial,
    Round,
    Super,
    Unknown,
    Value,
    Wrapped,
    of_buffers,
    of_parameters,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.source.source import Site


def get(machine: Machine, value: Value, name: str, site: Site) -> Value:
    """The attribute ``name`` of ``value``: assigned by the script, found in its class, known of PyTorch, or a part."""
    if isinstance(value, Either):
        value = _those_with(value, name)
        return machine.spread(value, lambda one: get(machine, one, name, site))
    if isinstance(value, Namespace):
        return value.read(machine, name)
    if isinstance(value, Super):
        return _above(machine, value, name)
    value = machine.memory.twins.get(value, value)
    if name in machine.memory.tags and of_parameters(value):
        machine.record(Read(machine.moment(site), value, name))
    stored = machine.memory.read(value, f".{name}", machine.here)
    if stored is None and isinstance(value, Module):  # entries of a ModuleDict are its attributes
        stored = machine.memory.read(value, f"[{name!r}]", machine.here)
    if stored is None and isinstance(value, Instance):
        if value in machine.memory.strangers:
            found = stranger_attribute(machine, value, name)
        else:
            found = classes.find(machine, value.cls, name)
            if found is None and value in machine.memory.loose:  # unpacked from a file, perhaps
                found = stranger_attribute(machine, value, name)
        if found is not None:
            stored = _bind(machine, found, value, site)
    if stored is not None:
        unknown = _may_be_set(machine, value, stored) or _is_asked_about(machine, stored)
        return _perhaps_set(machine, value, name) if unknown else stored
    if isinstance(value, Optimizer) and name not in _OF_EVERY_OPTIMIZER:
        made = machine.memory.read(value, MADE, machine.here)
        if isinstance(made, Instance) and _has(machine, made, name):
            return get(machine, made, name, site)
    if isinstance(value, Class):
        if name == "__dict__":
            return classes.names_of(machine, value)
        found = classes.find(machine, value, name)
        if found is not None:
            return _bind_class(found, value)
    handed = _handed_on(machine, value, name, site)
    if handed is not None:
        return handed
    known = known_attribute(machine, value, name)
    if known is not None:
        if isinstance(value, Wrapped) and (known is value.of or name not in METHODS):
            machine.record(Read(machine.moment(site), value, name))
        return known
    if isinstance(value, External):
        return machine.external(f"{value.name}.{name}")
    if name not in METHODS and machine.is_module(value):
        machine.record(Read(machine.moment(site), value, name))
    return value.part(f".{name}")


def _those_with(value: Either, name: str) -> Value:
    """What a value can be where its attribute ``name`` is read and nothing raises."""
    having = tuple((guards, one) for guards, one in value.options if not lacks(one, name))
    if not having or len(having) == len(value.options):
        return value
    return having[0][1] if len(having) == 1 else Either(having)


def _handed_on(machine: Machine, value: Value, name: str, site: Site) -> Value | None:
    """What the ``__getattr__`` of a class of the project gives: a proxy asks what it stands for."""
    if type(value) is not Instance or name.startswith("__") or value in machine.memory.strangers:
        return None
    asked = classes.find(machine, value.cls, "__getattr__")
    if not isinstance(asked, Function):
        return None
    return machine.call(asked, (value, machine.literal(name)), {}, site)


_OF_EVERY_OPTIMIZER = frozenset({"param_groups", "state", "step", "zero_grad"})
"""What an optimizer of the project has as torch's have it, whatever more its own does."""


def _has(machine: Machine, made: Instance, name: str) -> bool:
    """Whether the script or the class of an object says what it has under a name."""
    stored = machine.memory.read(made, f".{name}", machine.here)
    return stored is not None or classes.find(machine, made.cls, name) is not None


def _may_be_set(machine: Machine, owner: Value, stored: Value) -> bool:
    """Whether the constant of a settings object may have been overridden by unresolved code."""
    if not isinstance(stored, Literal) or type(owner) is not Instance:
        return False
    return owner in machine.memory.out or owner in machine.memory.loose


def _is_asked_about(machine: Machine, stored: Value) -> bool:
    """Whether a setting that is empty by default is read where a test says what it is."""
    if not isinstance(stored, Default):
        return False
    return any(one in machine.here.units for one in (stored.setting, *stored.setting.parts()))


def _perhaps_set(machine: Machine, owner: Value, name: str) -> Value:
    """A setting that may be another one than its default: where that is None, what its annotation says it is then."""
    part = owner.part(f".{name}")
    default = machine.memory.read(owner, f".{name}", machine.here)
    if not (isinstance(owner, Instance) and isinstance(owner.cls, Class)):
        return part
    if not (isinstance(default, Literal) and default.value is None):
        return part
    return instances.as_field(machine, owner.cls, name, part)


def _bind(machine: Machine, found: Value, receiver: Value, site: Site) -> Value:
    if isinstance(found, Either):
        return machine.spread(found, lambda one: _bind(machine, one, receiver, site))
    if not isinstance(found, Function):
        return found
    if found.kind == "property":
        return machine.call(found, (receiver,), {}, site)
    if found.kind == "staticmethod":
        return found
    if found.kind == "classmethod" and isinstance(receiver, Instance):
        return Bound(found, receiver.cls)
    return receiver.keep(("bound", found), Bound(found, receiver))


def _bind_class(found: Value, cls: Class) -> Value:
    if isinstance(found, Function) and found.kind == "classmethod":
        return Bound(found, cls)
    return found


def _above(machine: Machine, value: Super, name: str) -> Value:
    receiver = value.receiver
    start = receiver.cls if isinstance(receiver, Instance) else receiver
    found = classes.find(machine, start, name, above=value.cls)
    if isinstance(found, Function):
        return found if found.kind == "staticmethod" else Bound(found, receiver)
    if found is not None:
        return found
    return value.part(f".{name}")


def method(machine: Machine, value: Value, name: str) -> Value | None:
    """The project function ``name`` of ``value``'s class, bound."""
    if isinstance(value, Instance):
        found = classes.find(machine, value.cls, name)
        if isinstance(found, Function):
            return Bound(found, value)
    return None


def set_(machine: Machine, owner: Value, name: str, value: Value, site: Site) -> None:
    """``owner.name = value``."""
    if isinstance(owner, Either):
        for one in each_apart(machine, owner):
            set_(machine, one, name, value, site)
        return
    if isinstance(owner, Namespace):
        owner.write(machine, name, value)
        return
    owner = machine.memory.twins.get(owner, owner)
    if isinstance(owner, Instance):
        found = classes.find(machine, owner.cls, name)
        if isinstance(found, Function) and found.kind == "property":
            if found.setter is not None:
                machine.call(found.setter, (owner, value), {}, site)
            return
    value = as_it_is_called(machine, value, name)
    watched = machine.is_module(owner) and not _in_init(machine, owner)
    before = machine.memory.read(owner, f".{name}", machine.here) if watched else None
    for option in options(value):
        option.sit(owner, f".{name}")
    machine.memory.write(
        owner, f".{name}", machine.here, value, _there_before(machine, owner, name)
    )
    if owner in machine.memory.out:
        machine.memory.escape(value)
    if watched and (before is None or not same(before, value)):
        machine.record(Assigned(machine.moment(site), owner, name, value))
    if name != "names" and (of_parameters(owner) or (name == "data" and of_buffers(owner))):
        machine.record(Written(machine.moment(site), owner, name, value))
        if name not in ("data", "grad", "requires_grad"):
            machine.memory.tags.add(name)


def _there_before(machine: Machine, owner: Value, name: str) -> Value | None:
    """What an attribute is where the script has not set it: of its class, or of an object that comes from outside."""
    if not machine.here.clauses:
        return None
    found: Value | None = None
    if isinstance(owner, Instance) and owner not in machine.memory.strangers:
        found = classes.find(machine, owner.cls, name)
    elif isinstance(owner, Instance):
        found = stranger_attribute(machine, owner, name) or owner.part(f".{name}")
    elif isinstance(owner, External):
        found = machine.external(f"{owner.name}.{name}")
    elif isinstance(owner, Part | Unknown):
        found = owner.part(f".{name}")
    return None if isinstance(found, Function) else found


def _in_init(machine: Machine, owner: Value) -> bool:
    """Whether ``owner`` is still being made."""
    return any(
        f.receiver is owner and f.function is not None and f.function.name == "__init__"
        for f in machine.frames
    )


def item(machine: Machine, value: Value, key: Value, site: Site) -> Value:
    """``value[key]``."""
    if isinstance(value, Either):
        return machine.spread(value, lambda one: item(machine, one, key, site))
    if isinstance(key, Either):
        return machine.spread(key, lambda one: item(machine, value, one, site))
    module = module_of_names(value)
    if module is not None and isinstance(key, Literal):
        return module.read(machine, str(key.value))
    if module is not None:
        return one_of_names(machine, module, key, site)
    own = entry_method(machine, value, "__getitem__")
    if own is not None:
        return machine.call(own, (key,), {}, site)
    if isinstance(value, External) and value.name == "os.environ":
        return machine.call(machine.external("os.getenv"), (key,), {}, site)
    if isinstance(key, Literal):
        stored = _constant_entry(machine, value, key)
        if stored is not None:
            return stored
        known = known_attribute(machine, value, f"[{key.value!r}]")
        if known is None and isinstance(value, Container) and value.kind == "dict":
            known = _stored_under_a_name(machine, value, key, site)
        return known if known is not None else value.part(f"[{key.value!r}]")
    stored = machine.memory.read(value, ("[]", key), machine.here)
    if stored is None:
        stored = machine.memory.read(value, EVERYWHERE, machine.here)
    if stored is not None:
        return stored
    if isinstance(value, Container) and value.kind == "dict" and isinstance(key.owner, Instance):
        default = machine.memory.read(key.owner, key.key, machine.here)
        if isinstance(default, Literal):  # a setting that can be another
            stored = _constant_entry(machine, value, default)
            if stored is not None:
                several = _one_of_dtypes(machine, value, key, site)
                return stored if several is None else several
    if isinstance(value, Container) and value.kind == "dict":
        factory = value.part(".default_factory")
        if not isinstance(factory, Part):  # a `defaultdict`: it has what it is asked for
            stored = machine.call(factory, (), {}, site)
            store(machine, value, key, stored)
            return stored
    turn = key
    if isinstance(turn, Part) and isinstance(turn.key, Round):
        rounds = machine.elements(value, site)
        if isinstance(value, Container) and value.kind == "dict":
            entries = [v for _, v in machine.memory.entries(value, machine.here)]
            rounds = entries or rounds
        if turn.key.number < len(rounds):
            return rounds[turn.key.number]
        return rounds[-1] if rounds else value.part(("[]", key))
    if isinstance(key, Part) and key.key == (
        "index",
    ):  # ``enumerate`` has counted the same entries
        if key.owner in machine.elements(value, site):
            return key.owner
    if isinstance(value, Container) and not value.open:
        entries = [v for _, v in machine.memory.entries(value, machine.here)]
        if len(entries) == 1 and not _is_refused(machine, value, key, site):
            return entries[0]
        if value.kind == "dict" and len(entries) <= MAX_OPTIONS:
            return _one_of_entries(machine, value, key, site)
    if isinstance(value, Container) and value.kind == "dict":
        registered = _one_of_registered(machine, value, key, site)
        if registered is not None:
            return registered
    return value.part(("[]", key))


def _stored_under_a_name(
    machine: Machine, table: Container, key: Literal, site: Site
) -> Value | None:
    """``parts["encoder"]`` of a dictionary that a loop fills (``parts[name] = load(name)``): what is there where the
    name is that one, as far as it is an object; None where there is none.

    Of the rounds of such a loop each stands for another name, as long as there are enough of them.
    """
    names = machine.memory.names.setdefault(table, {})
    stored = {
        name: found
        for name, _ in list(machine.memory.entries(table, machine.here))
        if (found := _where_it_is(machine, table, name, key, site))
    }
    left = [name for name in stored if names.get(name, key) is key]
    for name in left[:1]:
        names[name] = key
    found = [option for name in left[:1] or stored for option in stored[name]]
    return Either(tuple(found[:MAX_OPTIONS])) if found else None


def _where_it_is(
    machine: Machine, table: Container, name: Hashable, key: Literal, site: Site
) -> list[tuple[Guards, Value]]:
    """The objects that a table holds under a name that is not known, where that is a certain one."""
    if not (isinstance(name, tuple) and name[0] == "[]" and isinstance(name[1], Value)):
        return []
    taken = conditions.clauses(machine, conditions.compare(machine, name[1], "==", key), True, site)
    here = NEVER if taken is None else machine.here.also(taken)
    stored = None if here.impossible else machine.memory.read(table, name, here)
    every = stored.options if isinstance(stored, Either) else ((ALWAYS, stored),)
    found = [
        (guards, one)
        for guards, one in every
        if one is not None and not guards.excludes(here) and _is_object(machine, one)
    ]
    is_it = ALWAYS.also(taken or frozenset())
    if len(found) == 1:  # it is there: what led to that held
        return [(is_it, found[0][1])]
    return [(is_it.and_(guards), one) for guards, one in found]


def _is_object(machine: Machine, value: Value) -> bool:
    """Whether a value is a model, an optimizer or an object of a class, not data."""
    return isinstance(value, Instance | Optimizer | Wrapped) or machine.is_module(value)


def entry_method(machine: Machine, value: Value, name: str) -> Value | None:
    """The ``__getitem__`` or ``__setitem__`` of an object of the project that is no module."""
    return method(machine, value, name) if type(value) is Instance else None


def _one_of_registered(machine: Machine, table: Container, key: Value, site: Site) -> Value | None:
    """``MODELS[name]`` of a registry of classes or builders that may hold more than is seen: one of them."""
    every = list(machine.memory.entries(table, machine.here))
    if not every or not all(_makes(machine, v) for _, v in every):
        return None
    by_name = any(_names_module(machine, _first(machine, v)) for _, v in every)
    found = _one_of_entries(machine, table, key, site, 3 if by_name else MAX_OPTIONS - 1)
    rest = table.part(("[]", key))
    return Either((*found.options, (ALWAYS, rest))) if isinstance(found, Either) else None


def _one_of_dtypes(machine: Machine, table: Container, key: Value, site: Site) -> Either | None:
    """``DTYPES[cfg.dtype]``: each dtype of a small table. Of classes, builders and sizes the default is followed alone."""
    every = [value for _, value in machine.memory.entries(table, machine.here)]
    if table.open or not 1 < len(every) <= MAX_OPTIONS:
        return None
    if not all(isinstance(value, External) and _DTYPE.fullmatch(value.name) for value in every):
        return None
    found = _one_of_entries(machine, table, key, site)
    return found if isinstance(found, Either) else None


_DTYPE = re.compile(r"torch\.(bool|double|half|(b?float|u?int|complex)\d+\w*)")


def _makes(machine: Machine, value: Value) -> bool:
    """Whether a value is a class or a function, one of several, the name of a module of the project, or a tuple that
    begins with one.
    """
    return all(
        isinstance(one, Class | Function | Partial | Bound) or _names_module(machine, one)
        for one in options(_first(machine, value))
    )


def _names_module(machine: Machine, value: Value) -> bool:
    """Whether a value is the dotted name of a module of the project, to be imported when it is asked for."""
    name = value.value if isinstance(value, Literal) else None
    return (
        isinstance(name, str)
        and "." in name
        and machine.project.resolve(name, 0, machine.source) is not None
    )


def _first(machine: Machine, value: Value) -> Value:
    """A value, or what a tuple begins with."""
    first = machine.memory.read(value, "[0]", machine.here) if _is_tuple(value) else None
    return value if first is None else first


def _is_tuple(value: Value) -> bool:
    return isinstance(value, Container) and value.kind == "tuple"


def _is_refused(machine: Machine, table: Container, key: Value, site: Site) -> bool:
    """Whether a test that holds here says that the key is not that of the only entry."""
    if table.kind != "dict":
        return False
    return not isinstance(_one_of_entries(machine, table, key, site), Either)


def _one_of_entries(
    machine: Machine, table: Container, key: Value, site: Site, most: int = MAX_OPTIONS
) -> Value:
    """``TABLE[key]``: each entry where the key is one of its own and none of those before.

    Of more than can be followed those that shard something come first.
    """
    here = machine.here
    entries: list[tuple[tuple[Hashable, ...], Value]]
    entries = [((name,), entry) for name, entry in machine.memory.entries(table, here)]
    if len(entries) > most:
        entries = _by_what_they_hold(machine, table)
        entries.sort(key=lambda one: not _speaks_of_sharding(machine, one[1]))
    refused: frozenset[Clause] = frozenset()
    chosen: list[tuple[Guards, Value]] = []
    for names, entry in entries[:most]:
        keys = [_stored_key(machine, name) for name in names]
        known = [one for one in keys if one is not None]
        if len(known) < len(keys):
            return table.part(("[]", key))
        tests = [conditions.compare(machine, key, "==", one) for one in known]
        sides = [conditions.sides(machine, test, site) for test in tests]
        taken = [held for held, _ in sides if held is not None]
        if taken:
            guards = ALWAYS.also(reduce(either, taken) | refused)
            if not guards.excludes(here):
                chosen.append((guards, entry))
        refused = refused.union(*(failed for _, failed in sides if failed is not None))
    return Either(tuple(chosen)) if chosen else table.part(("[]", key))


def _stored_key(machine: Machine, name: Hashable) -> Value | None:
    """The key of an entry: a constant, or a class (``MODELS = {LlamaConfig: Llama}``)."""
    if isinstance(name, str):
        return machine.literal(key_of(name))
    held = name[1] if isinstance(name, tuple) and name[0] == "[]" else None
    return held if isinstance(held, Class | External) else None


def _by_what_they_hold(
    machine: Machine, table: Container
) -> list[tuple[tuple[Hashable, ...], Value]]:
    """The entries of a table, those that hold the same under all of their names."""
    found: dict[object, tuple[tuple[Hashable, ...], Value]] = {}
    for name, entry in machine.memory.entries(table, machine.here):
        held = tuple(v for _, v in machine.memory.entries(entry)) if _is_tuple(entry) else entry
        names, first = found.get(held, ((), entry))
        found[held] = (*names, name), first
    return list(found.values())


def _speaks_of_sharding(machine: Machine, entry: Value) -> bool:
    """Whether a class or a function says that it may shard something."""
    made = _first(machine, entry)
    if isinstance(made, Bound):
        made = made.function
    return isinstance(made, Class | Function) and machine.ask(speaks_of_sharding, made.node)


def _constant_entry(machine: Machine, value: Value, key: Literal) -> Value | None:
    index = key.value
    fields = machine.memory.fields.get(value)
    if fields and isinstance(index, int) and index < 0:
        if isinstance(value, Container) and value.open:
            return None
        index += len(fields)
    stored = machine.memory.read(value, f"[{index!r}]", machine.here)
    if stored is None and isinstance(index, int):
        stored = machine.memory.read(value, EVERYWHERE, machine.here)
    if stored is not None:
        return stored
    if isinstance(value, Container) and value.kind == "dict":
        for field, entry in machine.memory.entries(value, machine.here):
            if isinstance(field, tuple) and field[0] == "of":
                return machine.item(entry, key, machine.site(machine.frame.statement))  # type: ignore[arg-type]
    return None


def key_of(text: str) -> object:
    """The key that an entry was stored under."""
    inner = text[1:-1]
    if inner[:1] in ("'", '"'):
        return inner[1:-1]
    return int(inner) if inner.lstrip("-").isdigit() else inner
