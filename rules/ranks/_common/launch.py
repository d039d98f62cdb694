"""Who starts the ranks of a script, and where they have their numbers from."""

from __future__ import annotations

from fsdp2lint.api import Called, Literal, Trace, Value

from ..._common.shared import is_none

_SET = "os.environ.__setitem__"
_READ = ("os.getenv", "os.environ.get", "os.environ.__getitem__")
SPAWNING = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
_BY_HAND = ("rank", "world_size", "store")
_OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def text(value: Value) -> str | None:
    """The string that a value is, if it is one."""
    known = value.value if isinstance(value, Literal) else None
    return known if isinstance(known, str) else None


def from_outside(trace: Trace) -> bool:
    """Whether the script starts no process and puts no rank into the environment itself."""
    if any(text(c.arguments[0]) in _OWN for c in trace.calls(_SET)):
        return False
    return not any(trace.calls("os.environ.update", "os.putenv", *SPAWNING))


def from_torchrun(trace: Trace) -> bool:
    """Whether the script reads its local rank from the environment and sets no rank there itself."""
    if not from_outside(trace):
        return False
    return any(c.arguments and text(c.arguments[0]) == "LOCAL_RANK" for c in trace.calls(*_READ))


def needs_local_rank(trace: Trace) -> bool:
    """Whether the script cannot run where its launcher sets no local rank."""
    return any(
        c.arguments and text(c.arguments[0]) == "LOCAL_RANK" and not c.guards.clauses
        for c in trace.calls(*_READ)
        if len(c.arguments) == 1 and not c.keywords
    )


def from_environment(started: Called) -> bool:
    """Whether a start takes rank, size and address from the environment."""
    method = started.argument(1, "init_method")
    return (
        not started.open
        and not any(name in started.keywords for name in _BY_HAND)
        and (is_none(method) or (method is not None and text(method) == "env://"))
    )
