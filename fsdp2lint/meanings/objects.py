"""Builtins that look at objects and classes, and the helpers of ``functools`` and ``typing``."""

from __future__ import annotations

from fsdp2lint.interpret.imports import Namespace
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.registry import calls
from fsdp2lint.meanings.results import choices, each_choice, fresh, nothing, text
from fsdp2lint.model.events import Assigned
from fsdp2lint.model.guards import Guard, Guards, unit
from fsdp2lint.model.memory import MAX_OPTIONS
from fsdp2lint.model.values import (
    Class,
    Container,
    Either,
    External,
    Function,
    Instance,
    Literal,
    Module,
    Part,
    Partial,
    Value,
    Wrapped,
)

_WRAPPER_CLASSES = {
    "torch.distributed.fsdp.FullyShardedDataParallel": "fsdp1",
    "torch.nn.parallel.DistributedDataParallel": "ddp",
    "torch.nn.parallel.DataParallel": "dp",
}


@calls("builtins.isinstance", "builtins.issubclass")
def isinstance_(call: Call) -> Value | None:
    """True or False where the class is known, else a test that is equal wherever it is asked again."""
    value, wanted = call.get(0), call.get(1)
    if value is None or wanted is None:
        return None
    classes = tuple(_classes(call, wanted))

    def one(given: Value) -> Value:
        known = _is_one_of(call, given, classes) if call.name == "builtins.isinstance" else None
        if known is not None:
            return call.machine.literal(known)
        return given.part(("isinstance", *classes))

    return call.machine.spread(value, one)


def _classes(call: Call, wanted: Value) -> list[Value]:
    """The classes of a class or of a tuple of classes."""
    found: list[Value] = []
    for one in choices(wanted):
        if isinstance(one, Container):
            for entry in call.items(one):
                found += [c for c in _classes(call, entry) if c not in found]
        elif one not in found:
            found.append(one)
    return found


def _is_one_of(call: Call, value: Value, classes: tuple[Value, ...]) -> bool | None:
    answers = [_is_a(call, value, wanted) for wanted in classes]
    if True in answers:
        return True
    return False if answers and all(a is False for a in answers) else None


def _is_a(call: Call, value: Value, wanted: Value) -> bool | None:
    name = wanted.name if isinstance(wanted, External) else ""
    if name.endswith("FSDPModule") or not isinstance(wanted, External | Class):
        return None
    if isinstance(value, Literal):
        return (
            name == f"builtins.{type(value.value).__name__}"
            if name.startswith("builtins.")
            else None
        )
    if isinstance(value, Container):
        return _is_container(value, name)
    if isinstance(value, Wrapped):
        return True if _WRAPPER_CLASSES.get(name) == value.by or name == "torch.nn.Module" else None
    if isinstance(value, Instance):
        return _derives(value.cls, wanted)
    if name == "torch.nn.Module" and call.is_module(value):
        return True
    return None


def _is_container(value: Container, name: str) -> bool | None:
    if name in ("builtins.list", "builtins.tuple", "builtins.set", "builtins.dict"):
        return name == f"builtins.{value.kind}" if value.kind != "chain" else None
    return None


def _derives(cls: Value, wanted: Value) -> bool | None:
    """Whether ``cls`` is ``wanted`` or one of its bases is; None when a base is out of sight."""
    certain = True
    todo, seen = [cls], set()
    while todo:
        one = todo.pop()
        if one in seen:
            continue
        seen.add(one)
        if one is wanted:
            return True
        if isinstance(one, Class):
            todo.extend(one.bases)
        elif isinstance(one, External):
            if _is_layer(one) and getattr(wanted, "name", "") == "torch.nn.Module":
                return True
            certain = certain and _has_known_bases(one, wanted)
        else:
            certain = False
    return False if certain else None


def _is_layer(cls: External) -> bool:
    return cls.name.startswith("torch.nn.")


def _has_known_bases(cls: External, wanted: Value) -> bool:
    """Classes of ``torch.nn`` derive from no class of the project; only few derive from another layer."""
    if cls.name in ("torch.nn.Module", "builtins.object", "abc.ABC", "typing.Generic", "enum.Enum"):
        return True
    return _is_layer(cls) and isinstance(wanted, Class)


@calls("builtins.hasattr")
def hasattr_(call: Call) -> Value | None:
    """True where the project's class or the script has it, else a test."""
    value, name = call.get(0), text(call.get(1))
    if value is None:
        return None

    def one(given: Value) -> Value:
        if name is not None and _has(call, given, name):
            return call.machine.literal(True)
        return given.part(("hasattr", name if name is not None else call.args[-1]))

    return call.machine.spread(value, one)


def _has(call: Call, value: Value, name: str) -> bool:
    if isinstance(value, External | Container | Literal | Function):
        return False
    if isinstance(value, Wrapped):
        return name == "module" and value.by in ("ddp", "fsdp1", "dp")
    if call.machine.method(value, name) is not None:
        return True
    variable = call.machine.memory.fields.get(value, {}).get(f".{name}")
    found = variable.read(call.machine.here) if variable is not None else []
    return bool(found) and call.machine.here.implies(found[-1][0])


@calls("builtins.getattr", "operator.attrgetter")
def getattr_(call: Call) -> Value | None:
    """The attribute of a constant name; of another name something inside (``torch.optim.*``)."""
    value, name = call.get(0), call.get(1)
    if value is None or name is None or call.name != "builtins.getattr":
        return None
    known = text(name)
    if known is not None:
        return call.machine.get(value, known, call.site)

    def one(given: Value) -> Value:
        if isinstance(given, External):
            return call.machine.external(f"{given.name}.*")
        if isinstance(given, Namespace):
            return _one_of(call, given, name)
        made = given.part(("getattr", name))
        made.label = made.label or f"getattr({given.words()}, {name.words()})"
        return made

    return call.machine.spread(value, one)


def _one_of(call: Call, module: Namespace, name: Value) -> Value:
    """``getattr(trainers, cfg.trainer)``: each class of a module of the project, where the name is its own."""
    module.load(call.machine)
    options = []
    for spelled, variable in module.scope.names.items() if module.scope is not None else ():
        value = next((v for _, v in variable.bindings), None)
        if isinstance(value, Class) and value.scope.source is module.source:
            test = name.part(("==", call.machine.literal(spelled)))
            options.append((Guards(unit(Guard(test, True, call.site))), value))
    if not 0 < len(options) <= MAX_OPTIONS:
        return module.part(("getattr", name))
    return Either(tuple(options))


@calls("builtins.setattr", "builtins.object.__setattr__")
def setattr_(call: Call) -> Value | None:
    """Sets the attribute; under a name that is not known the object holds the value all the same."""
    owner, name, value = call.get(0), text(call.get(1)), call.get(2)
    if owner is None or value is None:
        return None
    if name is not None:
        call.machine.set(owner, name, value, call.site)
        return nothing(call)
    for one in call.each(owner):
        call.machine.memory.hold(one, value)
        if one in call.machine.memory.out:
            call.machine.memory.escape(value)
        if call.is_module(one):
            call.emit(Assigned, owner=one, name="…", value=value)
    return nothing(call)


@calls("builtins.delattr")
def delattr_(call: Call) -> Value | None:
    """Forgets nothing: what was there may still be held elsewhere."""
    return nothing(call)


@calls("builtins.type")
def type_(call: Call) -> Value | None:
    """The class, where it is known."""
    value = call.get(0)
    if value is None or len(call.args) != 1:
        return None

    def one(given: Value) -> Value:
        return given.cls if isinstance(given, Instance) else given.part(".__class__")

    return each_choice(value, one)


@calls("functools.partial", "functools.partialmethod")
def partial(call: Call) -> Value | None:
    """A call that waits for the rest of its arguments."""
    if not call.args:
        return None
    return Partial(call.args[0], call.args[1:], call.keywords, call.open)


@calls("typing.cast")
def cast(call: Call) -> Value | None:
    """``cast(T, value)`` is ``value``."""
    return call.get(1, "val")


@calls("dataclasses.field", "attrs.field", "attr.ib")
def field(call: Call) -> Value | None:
    """The default of a field."""
    factory = call.keywords.get("default_factory") or call.keywords.get("factory")
    if factory is not None:
        return call.run(factory)
    return call.keywords.get("default") or fresh(call)


_SAME = "gives its argument back"


@calls(
    "functools.wraps",
    "functools.lru_cache",
    "functools.cache",
    "torch.compiler.disable",
    "torch._dynamo.disable",
    "torch.jit.ignore",
    "torch.jit.export",
    "torch.distributed.elastic.multiprocessing.errors.record",
)
def transparent(call: Call) -> Value | None:
    """Decorators that leave a function what it does; called without one they make such a decorator."""
    first = call.get(0)
    if isinstance(first, Function | Partial) and call.name != "functools.wraps":
        return first
    if isinstance(first, Module | Part) and call.is_module(first):
        return first
    return call.machine.external(_SAME)


@calls(_SAME)
def give_back(call: Call) -> Value | None:
    """The decorator that one of these made."""
    return call.get(0)


@calls("torch.jit.script", "torch.jit.trace")
def script(call: Call) -> Value | None:
    """Another module of the same parameters."""
    first = call.get(0)
    if isinstance(first, Function):
        return first
    made = fresh(call)
    if first is not None and call.is_module(first):
        call.machine.memory.hold(made, first)
        call.use_as_module(made)
    return made
