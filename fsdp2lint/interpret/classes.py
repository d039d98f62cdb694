"""Classes: how they are made, where names are found along their bases, how instances are born."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.interpret.handlers import run_body
from fsdp2lint.interpret.scopes import Scope
from fsdp2lint.meanings.model_classes import is_model_class
from fsdp2lint.model.memory import Variable
from fsdp2lint.model.trace import options
from fsdp2lint.model.values import (
    Bound,
    Class,
    Container,
    External,
    Function,
    Instance,
    Module,
    Part,
    Partial,
    Value,
    lineage,
    outside,
)
from fsdp2lint.source.source import Site

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine

MODULE_BASES = frozenset(
    {
        "torch.nn.Module",
        "torch.nn.ModuleList",
        "torch.nn.ModuleDict",
        "torch.nn.Sequential",
        "transformers.PreTrainedModel",
        "transformers.modeling_utils.PreTrainedModel",
        "pytorch_lightning.LightningModule",
        "lightning.LightningModule",
        "lightning.pytorch.LightningModule",
    }
)
"""Classes outside the project whose subclasses are ``nn.Module``s."""


PLAIN_BASES = frozenset(
    {
        "abc.ABC",
        "builtins.object",
        "dataclass_extensions.Registrable",
        "pydantic.BaseModel",
        "pydantic_settings.BaseSettings",
        "torch.distributed.checkpoint.stateful.Stateful",
        "typing.Generic",
        "typing.NamedTuple",
        "typing.Protocol",
        "typing_extensions.Protocol",
    }
)
"""Classes outside the project that add nothing to a subclass which a rule asks for: fields, names, a protocol."""


def define(machine: Machine, node: cst.ClassDef) -> Value:
    """The class that a ``class`` statement binds."""
    bases = tuple(_origin(machine.eval(b.value)) for b in node.bases)
    keywords = {
        keyword.keyword.value: machine.eval(keyword.value)
        for keyword in node.keywords
        if keyword.keyword is not None
    }
    scope = Scope("class", machine.source, machine.frame.scope)
    made = Class(node.name.value, node, bases, scope)
    frame = machine.push(scope)
    frame.statement = node
    run_body(machine, node.body)
    machine.pop()
    for variable in scope.names.values():
        for _, value in variable.bindings:
            if isinstance(value, Function) and value.home is None:
                value.home = made
                if value.setter is not None:
                    value.setter.home = made
    _tell_bases(machine, made, keywords)
    return _decorated(machine, made)


def _origin(base: Value) -> Value:
    """The class behind ``Generic[T]`` and ``Config[T]``: what it is of makes no other class."""
    while isinstance(base, Part) and isinstance(base.key, tuple) and base.key[0] == "[]":
        base = base.owner
    return base


def _decorated(machine: Machine, made: Class) -> Value:
    """What the decorators of a class make of it: those of the project run, and may put it into a registry."""
    value: Value = made
    for decorator in reversed(made.node.decorators):
        what = machine.eval(decorator.decorator)
        if is_of_project(machine, what):
            result = machine.call(what, [value], {}, machine.site(decorator))
            if isinstance(result, Class | Function | Bound):
                value = result
    return value


def is_of_project(machine: Machine, decorator: Value) -> bool:
    """Whether a decorator is a function, a method or a callable object of the project, or one of several."""
    return all(_runs(machine, one) for one in options(decorator))


def _runs(machine: Machine, decorator: Value) -> bool:
    if isinstance(decorator, Partial):
        return _runs(machine, decorator.call)
    if isinstance(decorator, Instance):
        return isinstance(find(machine, decorator.cls, "__call__"), Function)
    return isinstance(decorator, Function | Bound)


def _tell_bases(machine: Machine, made: Class, keywords: dict[str, Value]) -> None:
    """Run the ``__init_subclass__`` of the bases, as Python does when a class is made: many register it there."""
    keywords.pop("metaclass", None)
    hook = find(machine, made, "__init_subclass__", above=made)
    if isinstance(hook, Function):
        machine.call(hook, (made,), keywords, Site(machine.source, made.node, made.node))


def find(machine: Machine, cls: Value, name: str, above: Class | None = None) -> Value | None:
    """What ``name`` stands for in a class or its bases of the project; ``above``: only after that class."""
    passed = above is None
    for one in lineage(cls):
        if passed and isinstance(one, Class):
            stored = machine.memory.read(one, f".{name}", machine.here)
            if stored is not None:
                return stored
            variable: Variable | None = one.scope.names.get(name)
            if variable is not None:
                found = variable.value(machine.here)
                if found is not None:
                    return found
        if one is above:
            passed = True
    return None


def names_of(machine: Machine, cls: Class) -> Container:
    """``cls.__dict__``: what its body binds, and what was set since."""
    found: dict[str, Value] = {}
    for name in cls.scope.names:
        value = cls.scope.names[name].value(machine.here)
        if value is not None:
            found[name] = value
    for key, value in machine.memory.entries(cls, machine.here):
        if isinstance(key, str) and key.startswith("."):
            found[key[1:]] = value
    if _has_slots(cls):
        found.setdefault("__slots__", machine.unknown())
    return machine.container("dict", found)


def _has_slots(cls: Class) -> bool:
    """Whether ``@dataclass(slots=True)`` gives a class its slots."""
    return any(
        isinstance(argument.value, cst.Name)
        and argument.keyword is not None
        and (argument.keyword.value, argument.value.value) == ("slots", "True")
        for decorator in cls.node.decorators
        if isinstance(decorator.decorator, cst.Call)
        for argument in decorator.decorator.args
    )


def seen_whole(cls: Value) -> bool:
    """Whether every base of a class is resolved or is a plain ``nn.Module``/``object``."""
    return all(
        isinstance(c, Class)
        or (isinstance(c, External) and (c.name in MODULE_BASES or c.name in PLAIN_BASES))
        for c in lineage(cls)
    )


def is_module_class(cls: Value) -> bool:
    """Whether instances of a class are ``nn.Module``s."""
    return any(
        c.name in MODULE_BASES
        or c.name.startswith("torch.nn.modules.")
        or _torch_layer(c.name)
        or is_model_class(c.name)
        for c in outside(cls)
    )


def _torch_layer(name: str) -> bool:
    head, _, last = name.rpartition(".")
    return head == "torch.nn" and last[:1].isupper() and last not in ("Parameter", "Buffer")


def empty(cls: Class, site: Site | None) -> Instance:
    """An instance whose ``__init__`` has not run."""
    return (Module if is_module_class(cls) else Instance)(cls, site)


def loosen(machine: Machine, made: Instance, given: Iterable[str] = ()) -> None:
    """Which settings are unpacked or set shows at run time (``Config(**yaml.safe_load(f))``): its defaults are not
    certain, nor those of settings inside it that are there by default.
    """
    machine.memory.loose.add(made)
    for key, entry in list(machine.memory.entries(made, machine.here)):
        if type(entry) is Instance and entry not in machine.memory.loose:
            if key not in {f".{name}" for name in given}:
                loosen(machine, entry)
