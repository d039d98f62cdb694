"""Where the meanings of calls are found: by canonical name, or by method name.

A meaning is a function of a :class:`Call` that writes events down and returns the result:

    @calls("torch.save")
    def save(call: Call) -> Value | None: ...

    @method("parameters")
    def parameters(call: Call) -> Value | None: ...

Returning None says "not mine" (a method of the same name of something else): then the next meaning is
asked, and in the end the call is one that cannot be followed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdp2lint.meanings.call import Call
    from fsdp2lint.model.values import Value

Meaning = Callable[["Call"], "Value | None"]

CALLS: dict[str, Meaning] = {}
METHODS: dict[str, list[Meaning]] = {}
ALIASES: dict[str, str] = {}
"""Dotted names that mean the same thing as another: spelled name (or a prefix ending in ``.``) → canonical."""


def calls(*names: str) -> Callable[[Meaning], Meaning]:
    """Give a meaning to functions and classes with these canonical names."""

    def register(meaning: Meaning) -> Meaning:
        for name in names:
            if name in CALLS:
                raise ValueError(f"{name} has two meanings")
            CALLS[name] = meaning
        return meaning

    return register


def method(*names: str) -> Callable[[Meaning], Meaning]:
    """Give a meaning to methods with these names; it returns None for receivers that it does not know."""

    def register(meaning: Meaning) -> Meaning:
        for name in names:
            METHODS.setdefault(name, []).append(meaning)
        return meaning

    return register


def canonical(name: str) -> str:
    """The one name under which the meaning of ``name`` is kept."""
    known = ALIASES.get(name)
    if known is not None:
        return known
    for end in (i for i in range(len(name) - 1, 0, -1) if name[i] == "."):
        prefix = ALIASES.get(name[: end + 1])
        if prefix is not None:
            return canonical(prefix + name[end + 1 :])
    return name
