"""Calls that nobody can follow: what is handed over goes out of sight, what comes back is new."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp2lint.model.events import OptimizerBuilt
from fsdp2lint.model.memory import Making
from fsdp2lint.model.trace import options
from fsdp2lint.model.values import Literal, Optimizer, Part, Value

if TYPE_CHECKING:
    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.meanings.call import Call

_OPTIMIZERS = re.compile(r"optim|(^|_)opt$", re.IGNORECASE)


def as_it_is_called(machine: Machine, value: Value, name: str) -> Value:
    """What code that was not followed made of parameters is an optimizer where the script calls it one."""
    if not machine.memory.made_of or "sched" in name or not _OPTIMIZERS.search(name):
        return value
    every = options(value)  # dictionaries and the like are what other calls of that code give
    making = next((m for one in every if (m := machine.memory.made_of.get(one))), None)
    if making is None or any(isinstance(one, Optimizer) for one in every):
        return value
    made = Optimizer(machine.external(making.by), making.over)
    machine.record(OptimizerBuilt(machine.moment(making.site), made, making.over))
    return made


_ASKING = frozenset(
    {
        "get",
        "startswith",
        "endswith",
        "lower",
        "upper",
        "strip",
        "is_available",
        "is_initialized",
        "exists",
        "is_file",
        "is_dir",
    }
)
"""Methods that answer alike when asked alike: tests of their answers correlate."""


def unseen(call: Call) -> Value:
    """The result of a call whose target is not known."""
    operands = (*call.args, *call.keywords.values())
    over = tuple(p for operand in operands for p in call.parameters(operand))
    call.escape_arguments()
    receiver = call.receiver
    if over:
        made = call.machine.unknown(call.site, "" if receiver is not None else call.name)
        call.machine.memory.made_of[made] = Making(call.site, call.name, over)
        return made
    if receiver is None:
        return call.machine.unknown(call.site, call.name)
    name = call.name.lstrip(".")
    if name in _ASKING and all(isinstance(o, Literal | Part) for o in operands):
        return receiver.part(("call", call.name, *operands))
    return call.machine.unknown(call.site)
