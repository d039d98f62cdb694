"""Patterns of paths: ``*`` and ``?`` as in a shell, ``**/`` for any folders or none, ``{a,b}`` for either."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatch
from functools import cache
from itertools import product

_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_FOLDERS = re.compile(r"(?:(?<=[/\\])|^)(?:\*\*[/\\])+")


@cache
def spelled_out(pattern: str) -> tuple[str, ...]:
    """The patterns of :mod:`fnmatch` that mean the same together; their ``*`` reaches across folders."""
    braces = _BRACES.search(pattern)
    if braces is not None:
        head, tail = pattern[: braces.start()], pattern[braces.end() :]
        ways = (spelled_out(head + one + tail) for one in braces[1].split(","))
        return tuple(one for way in ways for one in way)
    first, *others = _FOLDERS.split(pattern)
    choices = product(*(("", "*/") for _ in others))
    joined = (zip(choice, others, strict=True) for choice in choices)
    return tuple(first + "".join(way + part for way, part in pairs) for pairs in joined)


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
