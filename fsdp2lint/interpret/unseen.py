"""Calls that nobody can follow: what is handed over goes out of sight, what comes back is new."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp2lint.model.values import Literal, Part, Value

if TYPE_CHECKING:
    from fsdp2lint.meanings.call import Call

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
    call.escape_arguments()
    receiver = call.receiver
    if receiver is None:
        return call.machine.unknown(call.site, call.name)
    name = call.name.lstrip(".")
    operands = (*call.args, *call.keywords.values())
    if name in _ASKING and all(isinstance(o, Literal | Part) for o in operands):
        return receiver.part(("call", call.name, *operands))
    return call.machine.unknown(call.site)
