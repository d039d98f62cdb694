"""Builtins that read and write attributes, and the helpers of ``functools``, ``typing`` and ``dataclasses``."""

from __future__ import annotations

from fsdp2lint.interpret.classes import empty, loosen
from fsdp2lint.interpret.conditions import compare, sides
from fsdp2lint.interpret.displays import store
from fsdp2lint.interpret.imports import NAMES, Namespace, module_of_names, one_of_names, own_names
from fsdp2lint.meanings.attributes import WRAPPED_NAMES, has_inside
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.paths import number_in
from fsdp2lint.meanings.registry import calls, method
from fsdp2lint.meanings.results import each_choice, fresh, nothing, text
from fsdp2lint.model.events import Assigned
from fsdp2lint.model.guards import ALWAYS, Guards
from fsdp2lint.model.memory import BOUND, MAX_OPTIONS
from fsdp2lint.model.values import (
    Class,
    Container,
    Either,
    External,
    Function,
    Instance,
    Module,
    OneOf,
    Part,
    Partial,
    Super,
    Value,
    Wrapped,
)


@calls("builtins.getattr", "operator.attrgetter")
def getattr_(call: Call) -> Value | None:
    """The attribute of a constant name; of another name something inside (``torch.optim.*``).

    ``getattr(model, "module", model)`` of what is in no wrapper is the default.
    """
    value, name = call.get(0), call.get(1)
    if value is None or name is None or call.name != "builtins.getattr":
        return None
    return call.machine.spread(name, lambda one: _attribute(call, value, one))


def _attribute(call: Call, value: Value, name: Value) -> Value:
    """The attribute of a value by one name."""
    known = text(name)
    if known is not None:
        default = call.get(2, "default")
        if known not in WRAPPED_NAMES or default is None:
            return call.machine.get(value, known, call.site)
        return call.machine.spread(value, lambda one: _inside(call, one, known, default))

    chosen = _one_of_constants(call, name)
    if chosen is not None:
        return call.machine.spread(
            chosen, lambda said: call.machine.get(value, str(text(said)), call.site)
        )

    def one(given: Value) -> Value:
        if isinstance(given, External):
            return call.machine.external(f"{given.name}.*")
        if isinstance(given, Namespace):
            return one_of_names(call.machine, given, name, call.site)
        made = given.part(("getattr", name))
        made.label = made.label or f"getattr({given.words()}, {name.words()})"
        return made

    return call.machine.spread(value, one)


def _one_of_constants(call: Call, name: Value) -> Either | None:
    """The names that an option of the command line can give, each where it is the one given."""
    if not isinstance(name, OneOf) or not 0 < len(name.constants) <= MAX_OPTIONS:
        return None
    chosen: list[tuple[Guards, Value]] = []
    for constant in name.constants:
        said = call.machine.literal(constant)
        held, _ = sides(call.machine, compare(call.machine, name, "==", said), call.site)
        if isinstance(constant, str) and held is not None:
            chosen.append((ALWAYS.also(held), said))
    return Either(tuple(chosen)) if chosen else None


def _inside(call: Call, value: Value, name: str, default: Value) -> Value:
    """What a wrapper holds under ``name``; ``default`` where there is no wrapper and nothing was stored so."""
    machine = call.machine
    if isinstance(value, Wrapped) and not has_inside(value, name):
        return _inside(call, value.of, name, default)
    if isinstance(value, Wrapped) or not call.is_module(value):
        return machine.get(value, name, call.site)
    stored = machine.memory.read(value, f".{name}", machine.here)
    own = isinstance(value, Instance) and machine.method(value, name) is not None
    return default if stored is None and not own else machine.get(value, name, call.site)


@calls("builtins.vars")
def vars_(call: Call) -> Value | None:
    """``vars(value)`` is ``value.__dict__``."""
    value = call.get(0)
    return fresh(call) if value is None else call.machine.get(value, "__dict__", call.site)


@calls("builtins.globals")
def globals_(call: Call) -> Value | None:
    """The names of the module whose code is running."""
    return own_names(call.machine)


@calls("builtins.exec")
def exec_(call: Call) -> Value | None:
    """``exec(open("configurator.py").read())`` gives the settings of a module other values."""
    given = call.get(1, "globals")
    names = given if given is not None else own_names(call.machine)
    module = module_of_names(names) if names is not None else None
    if module is not None and (given is not None or call.machine.frame.scope.kind == "module"):
        module.loosen(call.machine, call.site)
    return nothing(call)


@method("update")
def update_names(call: Call) -> Value | None:
    """``globals().update(settings)``, ``vars(args).update(settings)``."""
    if isinstance(call.receiver, Part) and call.receiver.key == NAMES:
        OneOf.loosen(call.receiver.owner)
    module = module_of_names(call.receiver) if call.receiver is not None else None
    if module is None:
        return None
    known = not call.open and all(isinstance(one, Container) and not one.open for one in call.args)
    if not known:
        module.loosen(call.machine, call.site)
    for one in call.args if known else ():
        for key, value in call.machine.memory.entries(one, call.machine.here):
            module.write(call.machine, str(key)[2:-2], value)
    for name, value in call.keywords.items():
        module.write(call.machine, name, value)
    return nothing(call)


@calls("builtins.setattr", "builtins.object.__setattr__")
def setattr_(call: Call) -> Value | None:
    """Sets the attribute; under a name that is not known the object holds the value all the same."""
    owner, name, value = call.get(0), text(call.get(1)), call.get(2)
    if owner is None or value is None:
        return None
    number = number_in(call, call.get(1))
    if number is not None and all(isinstance(one, Module) for one in call.each(owner)):
        for one in call.each(owner):  # "0" of a list of modules is its first entry
            store(call.machine, one, number, value, call.site.node)
        return nothing(call)
    if name is not None:
        call.machine.set(owner, name, value, call.site)
        return nothing(call)
    for one in call.each(owner):
        if isinstance(one, Namespace):
            one.loosen(call.machine, call.site)
            continue
        call.machine.memory.hold(one, value)
        OneOf.loosen(one)
        if type(one) is Instance:
            loosen(call.machine, one)
        else:
            call.machine.memory.loose.add(one)
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
        if isinstance(given, Instance) and given not in call.machine.memory.strangers:
            return given.cls
        return given.part(".__class__")

    return each_choice(value, one)


@calls("functools.partial", "functools.partialmethod")
def partial(call: Call) -> Value | None:
    """A call that waits for the rest of its arguments."""
    if not call.args:
        return None
    return Partial(call.args[0], call.args[1:], call.keywords, call.open, call.site)


@calls("typing.cast")
def cast(call: Call) -> Value | None:
    """``cast(T, value)`` is ``value``."""
    return call.get(1, "val")


@calls("typing.TypeVar", "typing_extensions.TypeVar")
def type_variable(call: Call) -> Value | None:
    """``TypeVar("M", bound=Model)``: what an annotation by that name says is at least a ``Model``."""
    made = call.machine.unknown(call.site, call.name)
    bound = call.keywords.get("bound")
    if bound is not None:
        call.machine.memory.write(made, BOUND, call.machine.here, bound)
    return made


@method("__new__")
def new(call: Call) -> Value | None:
    """``Cls.__new__(Cls)``: an object whose ``__init__`` has not run; also by ``super()`` and by ``object``."""
    cls = call.get(0, "cls")
    if isinstance(call.receiver, Super) and not isinstance(cls, Class):
        cls = call.receiver.receiver
    return empty(cls, call.site) if isinstance(cls, Class) else None


@calls("builtins.object.__new__")
def new_object(call: Call) -> Value | None:
    """The same."""
    cls = call.get(0, "cls")
    return empty(cls, call.site) if isinstance(cls, Class) else None


@calls("dataclasses.field", "attrs.field", "attr.ib")
def field(call: Call) -> Value | None:
    """The default of a field."""
    factory = call.keywords.get("default_factory") or call.keywords.get("factory")
    if factory is not None:
        return call.run(factory)
    return call.keywords.get("default") or fresh(call)


GIVEN_BACK = "gives its argument back"
"""The decorator that a call of ``transparent`` without a function makes."""


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
    keeps = call.name in ("functools.lru_cache", "functools.cache")
    return call.machine.external("functools.cache" if keeps else GIVEN_BACK)


@calls(GIVEN_BACK)
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
