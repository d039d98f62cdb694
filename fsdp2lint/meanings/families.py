"""Meanings of names that begin alike: ``torch.nn.``, ``torch.optim.``, packages of optimizers.

    @family("torch.optim.")
    def optimizer(call: Call) -> Value | None: ...

The longest prefix is asked first; one that returns None passes the call on to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fsdp2lint.meanings.registry import CALLS, Meaning

FAMILIES: dict[str, list[Meaning]] = {}


def family(*prefixes: str) -> Callable[[Meaning], Meaning]:
    """Give a meaning to all names that begin with one of ``prefixes`` (empty: to every name).

    Raises:
        ValueError: a prefix does not end with a dot.
    """

    def register(meaning: Meaning) -> Meaning:
        for prefix in prefixes:
            if prefix and not prefix.endswith("."):
                raise ValueError(f"{prefix} is no prefix of dotted names")
            FAMILIES.setdefault(prefix, []).append(meaning)
        return meaning

    return register


def meanings_of(name: str) -> Iterator[Meaning]:
    """The meanings to ask about a call of the canonical ``name``, in order."""
    exactly = CALLS.get(name)
    if exactly is not None:
        yield exactly
    for end in range(len(name), -1, -1):
        if end == 0 or name[end - 1] == ".":
            yield from FAMILIES.get(name[:end], ())


def last(name: str) -> str:
    """The last part of a dotted name."""
    return name.rpartition(".")[2]


def is_class_name(name: str) -> bool:
    """Whether the last part of a dotted name is written like a class (PEP 8), or is not known (``*``)."""
    end = last(name).lstrip("_")
    return end == "*" or end[:1].isupper()
