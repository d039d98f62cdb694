"""Under which names modules hold a function, and how it is replaced under all of them.

A walk over the names of all modules takes 10 ms once PyTorch is imported, and before a script runs some
thirty functions are replaced: within :func:`remembering` one walk serves for all.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

Place = tuple[str, dict[str, Any], str]
"""A module's name, its namespace, and a name in it."""


class _Memory:
    """Where functions were seen; it looks again at modules that are new or have new names once something was imported."""

    def __init__(self) -> None:
        self._places: dict[int, list[Place]] = {}
        self._seen: dict[str, tuple[object, int]] = {}
        self._modules = 0

    def places(self, function: object) -> list[Place]:
        """Where a function is held; none when it was made after the last look at a module."""
        self.look()
        return self._places.get(id(function), [])

    def look(self) -> None:
        """Read what is new: who gives a module a name imports others, as a rule."""
        if len(sys.modules) == self._modules:
            return
        self._modules = len(sys.modules)
        for title, module, held in _modules():
            if self._seen.get(title) != (id(module), len(held)):
                self._seen[title] = id(module), len(held)
                for key, value in held.items():
                    if type(value) in _FUNCTIONS:
                        self._places.setdefault(id(value), []).append((title, held, key))

    def moved(self, old: object, new: object, places: list[Place]) -> None:
        """These places hold another function now."""
        if type(new) in _FUNCTIONS and old is not new:
            self._places[id(new)] = [*self._places.get(id(new), ()), *places]


_FUNCTIONS = (FunctionType, BuiltinFunctionType)
_memories: list[_Memory] = []
_first: list[_Memory] = []
"""What a process that forks ranks has seen for them; letting go of it would copy its pages in each rank (50 ms)."""


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Keep in mind where functions are held, while nobody but us gives names of modules other functions."""
    _memories.append(_first[0] if _first else _Memory())
    try:
        yield
    finally:
        _memories.pop()


def look_ahead() -> None:
    """Look at all modules now, for ranks that are forked from this process."""
    memory = _Memory()
    memory.look()
    _first[:] = [memory]


def replace(original: Any, new: Any, among: Callable[[str], bool]) -> None:
    """Put another function under every name by which one of these modules holds the original."""
    places = [place for place in _places(original) if among(place[0])]
    for _, held, key in places:
        held[key] = new
    for memory in _memories:
        memory.moved(original, new, places)


def _places(original: Any) -> list[Place]:
    for memory in _memories:
        if type(original) in _FUNCTIONS:
            found = [
                place for place in memory.places(original) if place[1].get(place[2]) is original
            ]
            if found:
                return list(
                    {(title, key): (title, held, key) for title, held, key in found}.values()
                )
    return [
        (title, held, key)
        for title, _, held in _modules()
        for key in [key for key, value in held.items() if value is original]
    ]


def _modules() -> Iterator[tuple[str, object, dict[str, Any]]]:
    for title, module in list(sys.modules.items()):
        yield title, module, getattr(module, "__dict__", None) or {}
