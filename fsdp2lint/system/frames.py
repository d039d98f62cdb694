"""Room for the frames of Python's functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SLOTS = 1 << 17
"""So many pointers a frame asks for: a mebibyte."""


def roomy(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function below which others call each other deeply: they cost no more than they must.

    CPython keeps frames in chunks of 16 KiB, and gives a chunk back to the system as soon as the first frame
    in it ends (Python/pystate.c, ``push_chunk`` and ``_PyThreadState_PopFrame``, since 3.11). A loop that
    calls functions just where a chunk ends asks for memory with every call: a tenth of the time of a check.
    A frame that does not fit gets a chunk of the next power of two, which has room for what is called from
    it. The frame around the decorated function is such a one; nothing is ever written into most of it.
    """

    def inside(*args: P.args, **keywords: P.kwargs) -> T:
        return function(*args, **keywords)

    inside.__code__ = inside.__code__.replace(co_stacksize=_SLOTS)
    return wraps(function)(inside)
