"""Builtins that make numbers, strings and tests of what they are given; equal questions have equal answers."""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.paths import along, counts
from fsdp2lint.meanings.registry import calls
from fsdp2lint.meanings.results import choices, derived, each_choice, exact, fresh, text
from fsdp2lint.model.values import Container, External, Function, Literal, Value


@calls("builtins.len")
def len_(call: Call) -> Value | None:
    """The number of entries, when they are all known."""
    value = call.get(0)
    if value is None:
        return None

    def one(given: Value) -> Value:
        if isinstance(given, Literal) and isinstance(given.value, str | bytes):
            return call.machine.literal(len(given.value))
        if isinstance(given, Container) and not given.open:
            return call.machine.literal(len(call.items(given)))
        return given.part(("len",))

    return call.machine.spread(value, one)


@calls(
    "builtins.any",
    "builtins.all",
    "builtins.sum",
    "builtins.min",
    "builtins.max",
    "builtins.abs",
    "builtins.round",
    "builtins.repr",
    "builtins.id",
    "builtins.hash",
    "builtins.chr",
    "builtins.ord",
    "builtins.pow",
    "builtins.divmod",
    "builtins.float",
    "builtins.bytes",
    "builtins.complex",
    "builtins.slice",
    "builtins.dir",
    "builtins.callable",
    "builtins.format",
    "builtins.ascii",
    "builtins.bin",
    "builtins.hex",
)
def question(call: Call) -> Value | None:
    """Numbers, strings and tests made of the argument; equal ones are one value."""
    if not call.args:
        return fresh(call)
    folded = _folded(call)
    if folded is not None:
        return folded
    first, rest = call.args[0], call.args[1:]
    return each_choice(first, lambda one: one.part((call.name.rpartition(".")[2], *rest)))


def _folded(call: Call) -> Value | None:
    """``max(1, 2)`` of constants."""
    known = [v.value for v in call.args if isinstance(v, Literal)]
    numbers = [v for v in known if isinstance(v, int | float)]
    if len(numbers) != len(call.args) or call.name not in ("builtins.max", "builtins.min"):
        return None
    if len(numbers) < 2 or call.keywords:
        return None
    return call.machine.literal(max(numbers) if call.name.endswith("max") else min(numbers))


@calls("builtins.bool")
def bool_(call: Call) -> Value | None:
    """A test stays that test."""
    return call.get(0) or call.machine.literal(False)


@calls("builtins.str")
def str_(call: Call) -> Value | None:
    """The string of a constant, or a part of what it is made of."""
    value = call.get(0, "object")
    if value is None:
        return call.machine.literal("")

    def one(given: Value) -> Value:
        if isinstance(given, Literal) and isinstance(given.value, str | int | float | bool | None):
            return call.machine.literal(str(given.value))
        return given.part(("str",))

    return call.machine.spread(value, one)


_GETATTR = "builtins.getattr"


def _along(call: Call, value: Value, path: Value) -> Value:
    """``reduce(getattr, path, value)``: what lies at the end of the path; of one that is not known, a part."""
    names = exact(call.machine, path)
    known = [n for n in names or () if text(n) is not None or counts(n)]
    if names is None or len(known) != len(names):
        return value.part(("[]", path))
    return along(call, value, names)


@calls("functools.reduce")
def reduce(call: Call) -> Value | None:
    """Calls the function with two elements."""
    function, value = call.get(0), call.get(1)
    if function is None or value is None:
        return None
    start = call.get(2, "initial")
    if start is not None and isinstance(function, External) and function.name == _GETATTR:
        return call.machine.spread(start, lambda one: _along(call, one, value))
    found = call.machine.elements(value, call.site)
    if isinstance(function, Function) and len(found) >= 2:
        return call.run(function, found[0], found[1])
    return derived(call, value) if not list(choices(function)) else fresh(call)
