"""Calls: who is called, and what becomes of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from fsdp2lint.interpret import classes, functions, instances
from fsdp2lint.interpret.annotations import made_by_one_of
from fsdp2lint.interpret.handlers import leave
from fsdp2lint.interpret.imports import Namespace, module_like, module_named
from fsdp2lint.interpret.unseen import unseen
from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.families import meanings_of
from fsdp2lint.meanings.frameworks.recipes import (
    INSTANTIATE,
    are_settings,
    builds_what_is_named,
    handed_to,
    instantiate,
)
from fsdp2lint.meanings.fsdp1 import FSDP1
from fsdp2lint.meanings.libraries import library_method
from fsdp2lint.meanings.project_knowledge import hinted_meaning
from fsdp2lint.meanings.registry import METHODS
from fsdp2lint.meanings.results import choices, listed
from fsdp2lint.model.events import Called, Forward, Returned
from fsdp2lint.model.memory import GIVEN, MADE
from fsdp2lint.model.trace import options
from fsdp2lint.model.values import (
    Bound,
    Class,
    Either,
    External,
    Function,
    Instance,
    Literal,
    MainRank,
    Optimizer,
    Parameters,
    Part,
    Partial,
    Super,
    Value,
    Wrapped,
    outside,
    unwrapped,
)

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.source.source import Site


_CRITERION = re.compile(r"(^|[._])(loss|criterion)(_?fn|_?func|_?function)?$")
"""What scripts call the module that makes the loss of what a model has computed, where a configuration chooses it."""

_EXITS = frozenset({"sys.exit", "os._exit", "os.abort", "builtins.exit", "builtins.quit"})
"""Functions that do not come back."""

_MESH = "torch.distributed.device_mesh.init_device_mesh"


FORWARD_RUNS = 6
"""The ``forward`` of a model that one call has run so often computes what it has computed before."""


class Given(NamedTuple):
    """What a call was given, and where."""

    args: tuple[Value, ...]
    keywords: dict[str, Value]
    site: Site
    open: bool

    def after(self, receiver: Value) -> Given:
        """The same behind ``receiver``, as a method gets it."""
        return self._replace(args=(receiver, *self.args))

    def values(self) -> tuple[Value, ...]:
        """All that the call was given."""
        return (*self.args, *self.keywords.values())

    def instead(self, value: Value, other: Value) -> Given:
        """The same with another value in place of one."""
        args = tuple(other if one is value else one for one in self.args)
        keywords = {name: other if one is value else one for name, one in self.keywords.items()}
        return self._replace(args=args, keywords=keywords)

    def asked_of(self, machine: Machine, name: str, receiver: Value | None = None) -> Call:
        """The call as the meanings of ``name`` see it."""
        return Call(machine, self.site, name, receiver, self.args, self.keywords, self.open)


def call(
    machine: Machine,
    target: Value,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
    open_: bool,
) -> Value:
    """Call ``target``, whatever it is."""
    given = Given(args, keywords, site, open_)
    if isinstance(target, Either):
        return machine.spread(target, lambda one: call(machine, one, *given))
    hints = hinted_meaning(machine.project.hints, target)
    if hints is not None:
        what = given.asked_of(machine, target.words())
        result = hints(what)
        _called(machine, what.name, None, what, result)
        return result
    if isinstance(target, Function):
        if args and builds_what_is_named(target) and are_settings(args[0]):
            return _instantiate(machine, given)
        if target.decorators and not args:
            settings = handed_to(machine, target, site)
            given = given if settings is None else given._replace(args=(settings,))
        result = functions.invoke(machine, target, *given)
        return _run_commands(machine, target, site) or result
    if isinstance(target, Bound):
        return _call_bound(machine, target, given)
    if isinstance(target, Class):
        return _call_class(machine, target, given)
    if isinstance(target, Partial):
        merged = {**target.keywords, **keywords}
        return call(machine, target.call, (*target.args, *args), merged, site, open_ or target.open)
    if isinstance(target, External):
        return _call_external(machine, target, given)
    if isinstance(target, Part) and target.name is not None:
        return _call_method(machine, target.owner, target.name, given)
    return _call_object(machine, target, given)


def _instantiate(machine: Machine, given: Given) -> Value:
    """What the settings name and a function of the project builds: known where it is given parameters."""
    what = given.asked_of(machine, INSTANTIATE)
    made = instantiate(what)
    if made is None:
        what.escape_arguments()
        made = machine.unknown(given.site)
    _called(machine, what.name, None, what, made)
    return made


def _call_bound(machine: Machine, target: Bound, given: Given) -> Value:
    """A method of a project class. ``model.forward(x)`` called by hand is written down as a forward."""
    receiver = target.receiver
    if machine.is_module(receiver):
        name = target.function.name
        if target.function.home is not None and name not in ("__init__",):
            machine.record(Forward(machine.moment(given.site), receiver, name))
    if receiver in machine.placed:  # a loader of the project: how it is asked for data
        what = given.asked_of(machine, target.function.name, receiver)
        _called(machine, f".{target.function.name}", receiver, what, receiver)
    return functions.invoke(machine, target.function, *given.after(receiver))


def _call_class(machine: Machine, target: Class, given: Given) -> Value:
    made = instances.instantiate(machine, target, *given)
    own = classes.find(machine, target, "__init__")
    if own is None:
        _inherited_init(machine, Super(target, made), given)
    for base in outside(target):
        if base.name.startswith("torch.optim.") or (own is None and base.name == FSDP1):
            what = _as_the_base_is_given(machine, made, given).asked_of(machine, base.name)
            for meaning in meanings_of(base.name):
                known = meaning(what)
                if isinstance(known, Optimizer):
                    machine.memory.write(known, MADE, machine.here, made)
                if isinstance(known, Optimizer | Wrapped):
                    return known
    return made


def _as_the_base_is_given(machine: Machine, made: Value, given: Given) -> Given:
    """The call of an optimizer of the project as torch's ``__init__`` sees it.

    That may be other arguments than the project's own: groups made of a model. One that hands on nothing that
    is known to hold parameters takes those of the model that it is given.
    """
    taken = machine.memory.read(made, GIVEN, machine.here)
    what = given.asked_of(machine, "")
    if taken is not None and what.parameters(taken):
        return given._replace(args=(taken,), keywords={})
    every = (*given.args, *given.keywords.values())
    if taken is None and any(what.parameters(one) for one in every):
        return given
    lists = [one for value in every for one in choices(value)]
    models = [model for one in lists for entry in listed(what, one) for model in choices(entry)]
    over = [Parameters(one, None) for one in dict.fromkeys(models) if machine.is_module(one)]
    if not over:
        return given
    taken = over[0] if len(over) == 1 else machine.container("list", over)
    return given._replace(args=(taken,), keywords={})


def _inherited_init(machine: Machine, base: Super, given: Given) -> None:
    """What the ``__init__`` of a base outside does with the arguments, where that is known."""
    what = given.asked_of(machine, ".__init__", base)
    for meaning in METHODS.get("__init__", ()):
        if meaning(what) is not None:
            return


def _call_external(machine: Machine, target: External, given: Given) -> Value:
    if target.name == "builtins.super":
        return _super(machine, given.args)
    first = given.args[0] if given.args else None
    if target.name == "importlib.import_module" and isinstance(first, Literal):
        dotted = str(first.value)
        name = dotted.lstrip(".")
        return module_named(machine, name, len(dotted) - len(name))
    if target.name == "importlib.import_module" and isinstance(first, Either):
        return machine.spread(
            first, lambda one: _call_external(machine, target, given.instead(first, one))
        )
    if target.name == "importlib.import_module" and first is not None:
        like = module_like(machine, first)
        if like is not None:
            return like
    if target.name == _MESH:
        chosen = next((v for v in given.values() if isinstance(v, Either)), None)
        if chosen is not None:  # shape and names were chosen together: a mesh for each choice
            return machine.spread(
                chosen, lambda one: _call_external(machine, target, given.instead(chosen, one))
            )
    what = given.asked_of(machine, target.name)
    for meaning in meanings_of(target.name):
        result = meaning(what)
        if result is not None:
            break
    else:
        result = unseen(what)
    _called(machine, target.name, None, what, result)
    if target.name in _EXITS:
        _leave_program(machine, target.name, given.site)
    return result


def _leave_program(machine: Machine, name: str, site: Site) -> None:
    machine.frame.exited.append(machine.here)
    leave(machine, site.node, name)


def _call_method(
    machine: Machine,
    receiver: Value,
    name: str,
    given: Given,
) -> Value:
    """A method that is not the project's: of PyTorch, or of something not known."""
    what = given.asked_of(machine, f".{name}", receiver)
    for meaning in METHODS.get(name, ()):
        result = meaning(what)
        if result is not None:
            break
    else:
        result = library_method(what) or _as_said(machine, receiver, name, unseen(what))
    _called(machine, f".{name}", receiver, what, result)
    if name in ("error", "exit") and isinstance(receiver, Instance):
        if receiver.cls is machine.external("argparse.ArgumentParser"):
            _leave_program(machine, name, given.site)
    return result


def _as_said(machine: Machine, receiver: Value, name: str, result: Value) -> Value:
    """What a method gives that the class of an object leaves to its subclasses."""
    found = classes.find(machine, receiver.cls, name) if isinstance(receiver, Instance) else None
    if not isinstance(found, Function):
        return result
    return functions.as_annotated(machine, found, (receiver,), result)


def _called(machine: Machine, name: str, receiver: Value | None, what: Call, result: Value) -> None:
    machine.record(
        Called(
            machine.moment(what.site), name, receiver, what.args, what.keywords, what.open, result
        )
    )
    if machine.stage:
        for made in options(result):
            if isinstance(made, Instance) and made.born is what.site:
                machine.memory.begun.setdefault(made, machine.stage)


def _super(machine: Machine, args: tuple[Value, ...]) -> Value:
    frame = machine.frame
    function = frame.function
    receiver = args[1] if len(args) > 1 else frame.receiver
    home = args[0] if args else (function.home if function is not None else None)
    if receiver is None or not isinstance(home, Class):
        return machine.unknown()
    return receiver.keep(("super", home), Super(home, receiver))


def _run_commands(machine: Machine, target: Value, site: Site) -> Value | None:
    """Call each function that was registered with an object, with arguments from the command line."""
    registered = machine.commands.get(target) if machine.commands else None
    for command in registered or ():
        functions.invoke(machine, command, (), {}, site, True)
    return machine.unknown(site) if registered else None


def _call_object(machine: Machine, target: Value, given: Given) -> Value:
    """Calling an object: a module computes; an instance runs its ``__call__``; others are not followed."""
    if machine.is_module(target):
        machine.record(Forward(machine.moment(given.site), target, "call"))
        result = enter_forward(machine, target, given.args, given.keywords, given.site)
        inputs = (*given.args, *given.keywords.values())
        machine.record(Returned(machine.moment(given.site), target, inputs, result))
        return result
    if isinstance(target, Instance):
        found = classes.find(machine, target.cls, "__call__")
        if found is not None:
            return call(machine, found, *given.after(target))
    ran = _run_commands(machine, target, given.site)
    if ran is not None:
        return ran
    if isinstance(target, MainRank) and not (given.args or given.keywords):
        return (
            target  # an attribute in one framework, a method in another: `is_world_process_zero()`
        )
    if isinstance(target, (Literal, Namespace)):
        return machine.unknown()
    made = unseen(given.asked_of(machine, target.words(), target))
    if isinstance(target.owner, Class) and isinstance(
        target.key, tuple
    ):  # a name that is not known
        return made_by_one_of(machine, target.owner) or made
    if _CRITERION.search(target.words()):
        inputs = (*given.args, *given.keywords.values())
        machine.record(Returned(machine.moment(given.site), target, inputs, made))
    return made


def enter_forward(
    machine: Machine,
    module: Value,
    args: tuple[Value, ...],
    keywords: dict[str, Value],
    site: Site,
) -> Value:
    """Run the ``forward`` of a project class.

    In the second round of a loop, and when it has run often, the same call computes what it has computed before, so it
    is not run again.
    """
    inner = unwrapped(module)
    if isinstance(inner, Instance):
        found = classes.find(machine, inner.cls, "forward") or classes.find(
            machine, inner.cls, "__call__"
        )
        if isinstance(found, Function):
            times, known = machine.forwards.get((inner, site.node), (0, None))
            if known is not None and (machine.repeating or times >= FORWARD_RUNS):
                return known
            before = machine.entered
            result = functions.invoke(machine, found, (inner, *args), keywords, site, False)
            if machine.entered > before:
                machine.forwards[inner, site.node] = times + 1, result
            return result
    return machine.unknown()
