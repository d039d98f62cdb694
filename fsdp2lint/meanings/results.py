"""What meanings return: the few ways in which a call makes a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fsdp2lint.meanings.call import Call
from fsdp2lint.model.guards import Guards
from fsdp2lint.model.values import (
    Container,
    Either,
    External,
    Instance,
    Literal,
    Part,
    Super,
    Value,
    outside,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine


def nothing(call: Call) -> Value:
    """``None``: what a function returns that only does something."""
    return call.machine.literal(None)


def fresh(call: Call, name: str = "") -> Value:
    """A new value at each call; it comes from outside the project and is no part of its arguments."""
    said = name or call.name.lstrip(".")
    return Part(call.machine.external(said), ("call", call.now))


def same(call: Call) -> Value:
    """The same value at each call with the same arguments, so that tests of it correlate."""
    operands = (*call.args, *call.keywords.values())
    return call.machine.external(call.name).part(("call", *operands))


def derived(call: Call, value: Value, what: str = "") -> Value:
    """What ``call`` makes of ``value``: the same object for the same operation."""
    operation = what or call.name.rsplit(".", 1)[-1]
    return each_choice(value, lambda one: one.part((operation,)))


def instance(call: Call, name: str = "", **defaults: object) -> Instance:
    """An object of a class outside the project; its keyword arguments can be read as attributes.

    ``defaults`` are the constants that the class takes for what was left out, in the order of its fields.
    """
    made = Instance(call.machine.external(name or call.name), call.site)
    for keyword, value in call.keywords.items():
        made.keep(f".{keyword}", value)
    if not call.open:
        for keyword, value in zip(defaults, call.args, strict=False):
            made.keep(f".{keyword}", value)
        for keyword, constant in defaults.items():
            made.keep(f".{keyword}", call.machine.literal(constant))
    return made


def context(call: Call) -> Instance:
    """A context manager from outside the project: found again in ``Moment.within``."""
    return instance(call, call.name)


def setting(call: Call, owner: Value | None, name: str) -> Value | None:
    """The attribute ``name`` of an object made by :func:`instance`."""
    return None if owner is None else call.machine.get(owner, name, call.site)


def constant(value: Value | None) -> object:
    """The Python constant that ``value`` is; Ellipsis when it is none (or is not known)."""
    return value.value if isinstance(value, Literal) else ...


def flag(value: Value | None) -> bool | None:
    """``True`` or ``False`` when the value is that constant, else None."""
    known = constant(value)
    return known if isinstance(known, bool) else None


def text(value: Value | None) -> str | None:
    """The string that ``value`` is, if it is a constant one."""
    known = constant(value)
    return known if isinstance(known, str) else None


def name_of(value: Value | None) -> str:
    """The dotted name of something outside the project, or of the class it is an object of."""
    if isinstance(value, External):
        return value.name
    if isinstance(value, Instance) and isinstance(value.cls, External):
        return value.cls.name
    return ""


def made_by(value: Value | None, *prefixes: str) -> bool:
    """Whether ``value`` is an object of a class outside the project whose name begins so."""
    return isinstance(value, Instance) and name_of(value).startswith(prefixes)


def is_a(value: Value | None, *prefixes: str) -> bool:
    """Whether ``value`` is an object of a class outside the project whose name begins so, or of a class of the
    project that is derived from one; ``super()`` stands for the object.
    """
    made = value.receiver if isinstance(value, Super) else value
    return isinstance(made, Instance) and any(
        base.name.startswith(prefixes) for base in outside(made.cls)
    )


def each_choice(value: Value, make: Callable[[Value], Value]) -> Value:
    """``make`` of each thing that ``value`` can be, without effects."""
    if not isinstance(value, Either):
        return make(value)
    options: list[tuple[Guards, Value]] = [(g, make(v)) for g, v in value.apart()]
    first = options[0][1]
    return first if all(v is first for _, v in options) else Either(tuple(options))


def choices(value: Value | None) -> Iterator[Value]:
    """The things that ``value`` can be."""
    if isinstance(value, Either):
        yield from (v for _, v in value.options)
    elif value is not None:
        yield value


def exact(machine: Machine, value: Value | None) -> list[Value] | None:
    """The entries of a list, tuple or set that holds these and no others; None when that is not known."""
    if not isinstance(value, Container) or value.open or value.kind == "dict":
        return None
    return [v for _, v in machine.memory.entries(value, machine.here)]


def listed(call: Call, value: Value | None) -> list[Value]:
    """The entries of a list, tuple or set as far as they are known, else the value itself."""
    if value is None:
        return []
    if isinstance(value, Container) and value.kind != "dict":
        return call.items(value)
    return [value]


def strings(call: Call, value: Value | None) -> tuple[str, ...] | None:
    """The strings of a tuple or list of constants, or of one constant; None when one is not known."""
    one = text(value)
    if one is not None:
        return (one,)
    entries = exact(call.machine, value)
    if entries is None:
        return None
    found = [text(v) for v in entries]
    return None if None in found else tuple(s for s in found if s is not None)


def prepared(call: Call, value: Value) -> Value:
    """What a framework gives back for what it prepares: a model is used as one."""
    made = fresh(call)
    if call.is_module(value):
        call.use_as_module(made)
    return made
