"""``copy.copy`` and ``copy.deepcopy``: another object of the same kind.

A deep copy of a sharded module raises (torch/distributed/fsdp/_fully_shard/_fully_shard.py,
``_unimplemented_deepcopy``); the call itself is in the trace for whoever asks.
"""

from __future__ import annotations

from fsdp2lint.meanings.call import MAX_DEPTH, Call
from fsdp2lint.meanings.registry import calls
from fsdp2lint.meanings.results import fresh
from fsdp2lint.model.values import (
    Class,
    Container,
    External,
    Function,
    Instance,
    Literal,
    Module,
    StateDict,
    Value,
    Wrapped,
)


@calls("copy.deepcopy", "copy.copy")
def copy(call: Call) -> Value | None:
    """The copy of the first argument."""
    value = call.get(0, "x")
    if value is None:
        return None
    return call.machine.spread(value, lambda one: _copied(call, one, 0))


def _copied(call: Call, value: Value, depth: int) -> Value:
    shallow = call.name == "copy.copy" and depth > 0
    if shallow or depth > MAX_DEPTH or isinstance(value, Literal | External | Function | Class):
        return value
    if isinstance(value, Wrapped):
        return Wrapped(_copied(call, value.of, depth), value.by)
    if isinstance(value, StateDict):
        return _copied_state(call, value)
    if isinstance(value, Container):
        return _filled(call, value, Container(value.kind, value.open), depth)
    if isinstance(value, Module):
        return Module(value.cls, call.site)
    if isinstance(value, Instance):
        return _filled(call, value, Instance(value.cls, call.site), depth)
    made = fresh(call)
    if call.is_module(value):
        call.use_as_module(made)
    return made


@calls("dataclasses.replace", "attrs.evolve", "attr.evolve")
def replace(call: Call) -> Value | None:
    """Another object with the same fields but those that are named; without any it is as good as the first."""
    value = call.get(0, "obj")
    if value is None:
        return None

    def one(given: Value) -> Value:
        if not isinstance(given, Instance) or not (call.keywords or call.open):
            return given
        made = Instance(given.cls, call.site)
        memory, here = call.machine.memory, call.machine.here
        for key, entry in list(memory.entries(given, here)):
            memory.write(made, key, here, entry)
        for name, entry in call.keywords.items():
            memory.write(made, f".{name}", here, entry)
        for known in (memory.strangers, memory.foreign, memory.out, memory.loose):
            if given in known or (call.open and known is memory.loose):
                known.add(made)
        return made

    return call.machine.spread(value, one)


def _copied_state(call: Call, value: StateDict) -> StateDict:
    return StateDict(
        value.of,
        value.kind,
        full=value.full,
        offloaded=value.offloaded,
        via=call.name,
        taken=call.now,
    )


def _filled(call: Call, value: Value, made: Value, depth: int) -> Value:
    """``made`` with (copies of) what ``value`` holds."""
    memory, here = call.machine.memory, call.machine.here
    for key, entry in list(memory.entries(value, here)):
        memory.write(made, key, here, _copied(call, entry, depth + 1))
    return made
