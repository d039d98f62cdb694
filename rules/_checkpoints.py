"""Questions about checkpoints: where they go, what was put into them, who comes to write them."""

from __future__ import annotations

from fsdp2lint.api import (
    Container,
    Either,
    Event,
    External,
    Instance,
    Literal,
    Part,
    Round,
    StateDict,
    StateDictTaken,
    Trace,
    Value,
    options,
    rank_dependent,
)

from ._shared import state_shard, wrapped_by

_PATH_MAKERS = ("os.path.", "pathlib.", "os.fspath", "os.getcwd", "tempfile.mkdtemp")


def is_path(value: Value) -> bool:
    """Whether a value is surely a text or a path: made of one by `/`, `+`, a format or a function of paths."""
    seen = value
    while isinstance(seen, Part):
        if isinstance(seen.key, tuple) and seen.key[0] == "format":
            return True
        seen = seen.owner
    if isinstance(seen, Literal):
        return isinstance(seen.value, str)
    return isinstance(seen, External) and seen.name.startswith(_PATH_MAKERS)


def surely_empty(trace: Trace, value: Value, event: Event) -> bool:
    """Whether a value is a dictionary of the script into which nobody has put anything before `event`."""
    if not isinstance(value, Container) or value.kind != "dict" or value.open:
        return False
    if any(e.order < event.order for e in trace.escapes(value)):
        return False
    return not any(value in holders for holders in trace.memory.held_by.values())


_OF_ONE_PROCESS = ("tempfile.", "uuid.", "os.getpid", "random.", "time.", "datetime.", "socket.")
_COUNTING = ("<", "<=", ">", ">=", "%")


def same_everywhere(value: Value | None) -> bool:
    """Whether a value (a path) is surely the same on all ranks."""
    seen = value
    while isinstance(seen, Part):
        if isinstance(seen.key, tuple):
            if not all(same_everywhere(o) for o in seen.key[1:] if isinstance(o, Value)):
                return False
        seen = seen.owner
    if isinstance(seen, Either):
        return all(same_everywhere(v) for _, v in seen.options)
    if isinstance(seen, External):
        return not seen.name.startswith(_OF_ONE_PROCESS)
    return isinstance(seen, Literal)


def gathering(trace: Trace, state: StateDict) -> StateDictTaken | None:
    """The event at which all ranks gather the full state dict of a model that is spread over them."""
    if not state.full:
        return None
    for taken in trace.of(StateDictTaken):
        if taken.state is state:
            spread = any(wrapped_by(of, "ddp", "fsdp1") for of in options(state.of))
            return taken if spread or state_shard(trace, taken, state) is not None else None
    return None


def all_come(gathered: Event, event: Event) -> bool:
    """Whether every rank that is at one event surely comes to a later one.

    Neither may stand under a test of the rank. Between them there may be only tests that count steps, and no
    function that is decorated: a decorator may keep ranks away.
    """
    if any(rank_dependent(guard.test) for clause in event.guards.clauses for guard in clause):
        return False
    for clause in event.guards.since(gathered.guards):
        if not all(_counts(guard.test) for guard in clause):
            return False
    inner = [f for f in event.moment.inside if f not in gathered.moment.inside]
    return not any(function.decorators for function in inner)


def _counts(test: Value) -> bool:
    """Whether a test is about a number or about one round of a loop."""
    seen: Value | None = test
    while isinstance(seen, Part):
        if isinstance(seen.key, Round):
            return True
        if isinstance(seen.key, tuple) and seen.key[0] in _COUNTING:
            return True
        seen = seen.owner
    return False


def switch(trace: Trace, given: Value, name: str) -> bool | None:
    """A switch of ``StateDictOptions``; off where no options are given, None when it is not known."""
    if isinstance(given, Literal):
        return False if given.value is None else None
    set_later = trace.memory.fields.get(given, {})
    value = given.part(f".{name}")
    if not isinstance(given, Instance) or f".{name}" in set_later:
        return None
    return value.value if isinstance(value, Literal) and isinstance(value.value, bool) else None
