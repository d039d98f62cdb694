"""Methods of strings: of constants they are computed, of others they are parts."""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
from fsdp2lint.meanings.paths import words
from fsdp2lint.meanings.registry import method
from fsdp2lint.model.values import Container, Literal, Rank, Value

_SIMPLE = (
    "lower",
    "upper",
    "strip",
    "lstrip",
    "rstrip",
    "startswith",
    "endswith",
    "replace",
    "removeprefix",
    "removesuffix",
    "title",
    "capitalize",
    "rpartition",
    "isdigit",
)


@method(*_SIMPLE)
def simple(call: Call) -> Value | None:
    """``"…".lower()`` and its like."""
    receiver = call.receiver
    if not isinstance(receiver, Literal) or not isinstance(receiver.value, str):
        return None
    operands = [a.value for a in call.args if isinstance(a, Literal)]
    if len(operands) == len(call.args) and not call.keywords:
        try:
            result = getattr(receiver.value, call.name[1:])(*operands)
        except (TypeError, ValueError):
            result = None
        if isinstance(result, str | bool):
            return call.machine.literal(result)
    return receiver.part(("call", call.name, *call.args))


@method("format", "join", "encode", "zfill", "ljust", "rjust", "partition", "splitlines")
def made_of(call: Call) -> Value | None:
    """Made of its arguments: it differs from rank to rank when one of them does."""
    receiver = call.receiver
    if not isinstance(receiver, Literal) or not isinstance(receiver.value, str):
        return None
    operands = [*call.args, *call.keywords.values()]
    for value in list(operands):
        if isinstance(value, Container):
            operands += call.items(value)
    first = next((v for v in operands if isinstance(v, Rank)), receiver)
    return first.part(("format", *(v for v in operands if v is not first), receiver))


@method("split", "rsplit")
def split(call: Call) -> Value | None:
    """A list of the words of a constant, or of a constant with the numbers of loops in it."""
    receiver = call.receiver
    if receiver is None or (isinstance(receiver, Literal) and not isinstance(receiver.value, str)):
        return None
    separator = call.constant(0, "sep", None)
    limit = call.constant(1, "maxsplit", -1)
    found: list[Value] | None = None
    if isinstance(receiver, Literal) and separator != "" and isinstance(limit, int):
        if separator is None or isinstance(separator, str):
            split_by = getattr(receiver.value, call.name[1:])
            found = [call.machine.literal(word) for word in split_by(separator, limit)]
    elif isinstance(separator, str) and separator and limit == -1:
        found = words(call, receiver, separator)
    if found is not None and not call.open:
        return call.machine.container("list", found)
    return receiver.part(("call", call.name, *call.args)) if isinstance(receiver, Literal) else None
