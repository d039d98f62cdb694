"""Patterns of paths: ``*`` and ``?`` as in a shell, ``**/`` for any folders or none, ``{a,b}`` for either."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from itertools import product

_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_FOLDERS = re.compile(r"(?:(?<=[/\\])|^)(?:\*\*[/\\])+")

MAX_CHOICES = 1_000
"""The most patterns that one may stand for."""
MAX_LENGTH = 4_000


@cache
def spelled_out(pattern: str) -> tuple[str, ...]:
    """The patterns of :mod:`fnmatch` that mean the same together; their ``*`` reaches across folders.

    Raises:
        ValueError: they are too many.
    """
    ways = _choices(pattern)
    if ways > MAX_CHOICES or len(pattern) > MAX_LENGTH:
        raise ValueError(f"`{pattern[:40]}…` stands for more than {MAX_CHOICES} patterns")
    return tuple(_spelled_out(pattern))


def _choices(pattern: str) -> int:
    """How many patterns it stands for, if not more: each group multiplies, each ``**/`` doubles."""
    ways = 1 << min(len(_FOLDERS.findall(pattern)), 20)
    for group in pattern.split("{")[1:]:
        ways *= 1 + group.partition("}")[0].count(",")
        if ways > MAX_CHOICES:
            break
    return ways


def _spelled_out(pattern: str) -> Iterator[str]:
    braces = _BRACES.search(pattern)
    if braces is not None:
        head, tail = pattern[: braces.start()], pattern[braces.end() :]
        for one in braces[1].split(","):
            yield from _spelled_out(head + one + tail)
        return
    first, *others = _FOLDERS.split(pattern)
    choices = product(*(("", "*/") for _ in others))
    joined = (zip(choice, others, strict=True) for choice in choices)
    yield from (first + "".join(way + part for way, part in pairs) for pairs in joined)


def fits(path: str, pattern: str) -> bool:
    """Whether a pattern means a path."""
    return any(fnmatch(path, one) for one in spelled_out(pattern))


def anchored(pattern: str, folder: str) -> str:
    """The pattern as one of whole paths: relative to a folder, and without a slash at any depth below it."""
    if pattern.startswith("!"):
        return "!" + anchored(pattern[1:], folder)
    text = pattern.rstrip("/") or pattern
    inside = text if "/" in text or os.sep in text else f"**/{text}"
    return os.path.normpath(os.path.join(folder, os.path.expanduser(inside)))
