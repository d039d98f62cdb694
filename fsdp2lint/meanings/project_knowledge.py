"""Functions of the project whose meaning the configuration gives: they are not followed.

What they do besides is not known, so what they are given escapes: a rule may say what is wrong
after such a call, never that something is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.modules import module
from fsdp2lint.meanings.results import nothing
from fsdp2lint.model.events import Collective, OptimizerBuilt, Sharded
from fsdp2lint.model.hints import NO_HINTS, Hints, Role
from fsdp2lint.model.values import (
    Bound,
    Class,
    Container,
    External,
    Function,
    Literal,
    Optimizer,
    Parameters,
    Value,
)

Meaning = Callable[[Call], Value]


def hinted_meaning(hints: Hints, target: Value) -> Meaning | None:
    """What the configuration says that a call of ``target`` does, if it says anything."""
    if hints is NO_HINTS:
        return None
    if isinstance(target, External):
        role = _by_name(hints).get(target.name)
        return None if role is None else _MEANINGS[role]
    if isinstance(target, Bound):
        return hinted_meaning(hints, target.function)
    if not isinstance(target, Function | Class):
        return None
    own = target.name
    if isinstance(target, Function) and target.home is not None:
        own = f"{target.home.name}.{own}"
    for name, role in _by_name(hints).items():
        if name.endswith(f".{own}") and _lies_in(target, name.removesuffix(f".{own}")):
            return _MEANINGS[role]
    return None


def _lies_in(target: Function | Class, module: str) -> bool:
    """Whether the file of a function ends in the path of a module: ``…/mypkg/parallel.py``."""
    file: str = target.scope.source.path
    path = os.path.abspath(file).replace(os.sep, "/").removesuffix(".py")
    return path.removesuffix("/__init__").endswith("/" + module.replace(".", "/"))


@lru_cache(maxsize=8)
def _by_name(hints: Hints) -> dict[str, Role]:
    return dict(hints.roles())


def _shards(call: Call) -> Value:
    """Shards the modules among its arguments, the first one if none is known to be a module; returns it."""
    given = [*call.args, *call.keywords.values()]
    modules = [v for v in given if call.is_module(v)] or given[:1]
    for value in modules:
        for one in call.each(value):
            if not isinstance(one, Literal | Container):
                call.use_as_module(one)
                call.emit(Sharded, modules=(one,), options={}, open=True)
    call.escape_arguments()
    return modules[0] if modules else nothing(call)


def _builds_an_optimizer(call: Call) -> Value:
    """Builds one over the parameters that it is given, or over those of the model."""
    over: tuple[Parameters, ...] = ()
    given = [*call.args, *call.keywords.values()]
    for value in given:
        if call.is_module(value):
            over = (call.machine.take(Parameters(value, None)),)
            break
        over = over or call.parameters(value)
    if not over and given and not isinstance(given[0], Literal | Container):
        call.use_as_module(given[0])
        over = (call.machine.take(Parameters(given[0], None)),)
    made = Optimizer(call.machine.external(call.name), over)
    call.emit(OptimizerBuilt, optimizer=made, over=over)
    return made


def _asks_for_the_first_rank(call: Call) -> Value:
    return call.machine.main_rank("global")


def _is_collective(call: Call) -> Value:
    """Every rank has to make the call."""
    about = next((v for v in call.args if not isinstance(v, Literal)), None)
    call.emit(Collective, name=call.name, about=about)
    call.escape_arguments()
    return call.machine.unknown()


def _builds_a_model(call: Call) -> Value:
    """A new ``nn.Module`` whose class is not seen."""
    call.escape_arguments()
    return module(call)


_MEANINGS: dict[Role, Meaning] = {
    "shards": _shards,
    "optimizers": _builds_an_optimizer,
    "rank_guards": _asks_for_the_first_rank,
    "collectives": _is_collective,
    "models": _builds_a_model,
}
