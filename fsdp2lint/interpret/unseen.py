"""Calls that nobody can follow: what is handed over escapes, what comes back is new."""

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
    known = machine.memory.made_of
    if not known or "sched" in name or not _OPTIMIZERS.search(name):
        return value
    if not any(one in known for one in options(value)):
        return value
    return machine.spread(value, lambda one: _built(machine, one))


def _built(machine: Machine, value: Value) -> Value:
    making = machine.memory.made_of.get(value)
    if making is None:
        return value
    key = "the optimizer that it is"
    known = machine.memory.read(value, key, machine.here)
    if known is not None:
        return known
    made = Optimizer(machine.external(making.by), making.over)
    machine.memory.write(value, key, machine.here, made)
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
