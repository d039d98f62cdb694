"""Methods of strings: of constants they are computed, of others they are parts."""

from __future__ import annotations

from fsdp2lint.meanings.call import Call
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
    """A list of constants from a constant."""
    receiver = call.receiver
    if not isinstance(receiver, Literal) or not isinstance(receiver.value, str):
        return None
    separators = [a.value for a in call.args if isinstance(a, Literal)]
    if len(separators) == len(call.args) <= 1 and not call.keywords:
        separator = separators[0] if separators else None
        if separator is None or (isinstance(separator, str) and separator):
            words = receiver.value.split(separator)
            return call.machine.container("list", [call.machine.literal(w) for w in words])
    return receiver.part(("call", call.name, *call.args))
