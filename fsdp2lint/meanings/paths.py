"""Dotted paths to the parts of a module: ``layers.0.attn`` as a constant, or with the number of a loop in it."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp2lint.meanings.call import Call
from fsdp2lint.model.values import External, Literal, Part, Round, Value


def words(call: Call, path: Value | None, separator: str = ".") -> list[Value] | None:
    """What is between the separators of ``"layers.0"`` or ``f"layers.{i}"``: constants and the numbers of loops;
    None where anything else is in it, which may have separators of its own.
    """
    if isinstance(path, Literal) and isinstance(path.value, str):
        return [call.machine.literal(word) for word in path.value.split(separator)]
    if path is None or not (isinstance(path.key, tuple) and path.key[0] == "format"):
        return None
    _, said, *values = path.key
    waiting = iter(values)
    found: list[Value] = []
    for piece in str(said).split(separator):
        value = next(waiting, None) if piece == "{}" else call.machine.literal(piece)
        if value is None or ("{" in piece and piece != "{}"):
            return None
        if piece == "{}" and not _undivided(value, separator):
            return None
        found.append(value)
    return found


def counts(value: Value) -> bool:
    """Whether this is the number of a round: ``i`` of ``for i in range(n)`` or of ``enumerate``, or its text."""
    if not isinstance(value, Part):
        return False
    if value.key == ("str",):
        return value.owner is not None and counts(value.owner)
    return value.key == ("index",) or (isinstance(value.key, Round) and is_range(value.owner))


def is_range(value: Value) -> bool:
    """Whether this is ``range(n)``."""
    owner = value.owner
    return isinstance(owner, External) and owner.name == "builtins.range"


def number_in(call: Call, word: Value | None) -> Value | None:
    """The number that a word of a path is, if it is one: the place of an entry in a list of modules."""
    if isinstance(word, Literal) and isinstance(word.value, str) and word.value.isdigit():
        return call.machine.literal(int(word.value))
    if word is None or not counts(word):
        return None
    return word.owner if word.key == ("str",) else word


def along(call: Call, value: Value, path: Sequence[Value]) -> Value:
    """What lies at the end of the path."""
    for word in path:
        stored = call.machine.memory.read(value, ("[]", word), call.machine.here)
        if stored is not None:  # of a dictionary of modules: `str(i)` is its key
            value = stored
            continue
        number = number_in(call, word)
        if number is not None:
            value = call.machine.item(value, number, call.site)
        elif isinstance(word, Literal) and word.value:
            value = call.machine.get(value, str(word.value), call.site)
    return value


def _undivided(value: Value, separator: str) -> bool:
    """Whether the text of this value is one word."""
    return counts(value) or (isinstance(value, Literal) and separator not in str(value.value))
