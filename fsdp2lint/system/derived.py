"""What is made of an object, once: it is kept with the object and forgotten with it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar

T = TypeVar("T")


class Derives:
    """A file, a program or a trace, of which many things are made that others ask for again."""

    def derived(self, make: Callable[..., T], *given: Any) -> T:
        """What ``make`` makes of this and what else is ``given``, made when it is first asked for."""
        key = (make, *given)
        if key not in self._derived:
            self._derived[key] = make(self, *given)
        made: T = self._derived[key]
        return made

    def forget_derived(self) -> None:
        """Let go of all that was made of it."""
        self._derived.clear()

    @cached_property
    def _derived(self) -> dict[tuple[Hashable, ...], Any]:
        return {}
