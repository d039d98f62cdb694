"""Calls: who is called, and what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp2lint.interpret import classes, functions
from fsdp2lint.interpret.imports import Namespace, module_named
from fsdp2lint.interpret.unseen import unseen
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import meanings_of
from fsdp2lint.meanings.registry import METHODS
from fsdp2lint.model.events import Called, Forward
from fsdp2lint.model.values import (
    Bound,
    Class,
    Either,
    External,
    Function,
    Instance,
    Literal,
    Optimizer,
    Part,
    Partial,
    Super,
    Value,
    unwrapped,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.source import Site


_EXITS = frozenset({"sys.exit", "os._exit", "os.abort", "builtins.exit", "builtins.quit"})
"""Functions that do not come back."""


def call(
    machine: Machine,
    target: Value,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
    open_: bool,
) -> Value:
    """Call ``target``, whatever it is."""
    if isinstance(target, Either):
        return machine.spread(target, lambda one: call(machine, one, args, keywords, site, open_))
    if isinstance(target, Function):
        return functions.invoke(machine, target, args, keywords, site, open_)
    if isinstance(target, Bound):
        return _call_bound(machine, target, args, keywords, site, open_)
    if isinstance(target, Class):
        return _call_class(machine, target, args, keywords, site, open_)
    if isinstance(target, Partial):
        merged = {**target.keywords, **keywords}
        return call(machine, target.call, (*target.args, *args), merged, site, open_ or target.open)
    if isinstance(target, External):
        return _call_external(machine, target, args, keywords, site, open_)
    if isinstance(target, Part) and target.name is not None:
        return _call_method(machine, target.owner, target.name, args, keywords, site, open_)
    return _call_object(machine, target, args, keywords, site, open_)


def _call_bound(
    machine: Machine,
    target: Bound,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
    open_: bool,
) -> Value:
    """A method of a project class. ``model.forward(x)`` called by hand is written down as a forward."""
    receiver = target.receiver
    if machine.is_module(receiver):
        name = target.function.name
        if target.function.home is not None and name not in ("__init__",):
            machine.record(Forward(machine.moment(site), receiver, name))
    return functions.invoke(machine, target.function, (receiver, *args), keywords, site, open_)


def _call_class(
    machine: Machine,
    target: Class,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
    open_: bool,
) -> Value:
    made = classes.instantiate(machine, target, args, keywords, site, open_)
    for base in classes.outside(target):
        if base.name.startswith("torch.optim."):
            what = Call(machine, site, base.name, None, args, keywords, open_)
            for meaning in meanings_of(base.name):
                optimizer = meaning(what)
                if isinstance(optimizer, Optimizer):
                    return optimizer
    return made


def _call_external(
    machine: Machine,
    target: External,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
    open_: bool,
) -> Value:
    if target.name == "builtins.super":
        return _super(machine, args)
    if target.name == "importlib.import_module" and args and isinstance(args[0], Literal):
        dotted = str(args[0].value)
        name = dotted.lstrip(".")
        return module_named(machine, name, len(dotted) - len(name))
    what = Call(machine, site, target.name, None, args, keywords, open_)
    for meaning in meanings_of(target.name):
        result = meaning(what)
        if result is not None:
            break
    else:
        result = unseen(what)
    _called(machine, target.name, None, what, result)
    if target.name in _EXITS:
        _leave_program(machine, target.name, site)
    return result


def _leave_program(machine: Machine, name: str, site: Site) -> None:
    from fsdp2lint.interpret.statements import leave

    machine.frame.exited.append(machine.here)
    leave(machine, site.node, name)


def _call_method(
    machine: Machine,
    receiver: Value,
    name: str,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
    open_: bool,
) -> Value:
    """A method that is not the project's: of PyTorch, or of something not known."""
    what = Call(machine, site, f".{name}", receiver, args, keywords, open_)
    for meaning in METHODS.get(name, ()):
        result = meaning(what)
        if result is not None:
            break
    else:
        result = unseen(what)
    _called(machine, f".{name}", receiver, what, result)
    return result


def _called(machine: Machine, name: str, receiver: Value | None, what: Call, result: Value) -> None:
    machine.record(
        Called(
            machine.moment(what.site), name, receiver, what.args, what.keywords, what.open, result
        )
    )


def _super(machine: Machine, args: tuple[Value, ...]) -> Value:
    frame = machine.frame
    function = frame.function
    receiver = args[1] if len(args) > 1 else frame.receiver
    home = args[0] if args else (function.home if function is not None else None)
    if receiver is None or not isinstance(home, Class):
        return machine.unknown()
    return receiver.keep(("super", home), Super(home, receiver))


def _call_object(
    machine: Machine,
    target: Value,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
    open_: bool,
) -> Value:
    """Calling an object: a module computes; an instance runs its ``__call__``; others are not followed."""
    if machine.is_module(target):
        machine.record(Forward(machine.moment(site), target, "call"))
        return enter_forward(machine, target, args, keywords, site)
    if isinstance(target, Instance):
        found = classes.find(machine, target.cls, "__call__")
        if found is not None:
            return call(machine, found, (target, *args), keywords, site, open_)
    if isinstance(target, Literal | Namespace):
        return machine.unknown()
    return unseen(Call(machine, site, target.words(), target, args, keywords, open_))


def enter_forward(
    machine: Machine,
    module: Value,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
) -> Value:
    """Run the ``forward`` of a project class."""
    inner = unwrapped(module)
    if isinstance(inner, Instance):
        found = classes.find(machine, inner.cls, "forward") or classes.find(
            machine, inner.cls, "__call__"
        )
        if isinstance(found, Function):
            return functions.invoke(machine, found, (inner, *args), keywords, site, False)
    return machine.unknown()
