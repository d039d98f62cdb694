"""``.gitignore`` files: what git would not look at, we do not look at either."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from fsdp2lint.system.files import MAX_TEXT, read

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


MAX_LINES = 10_000
MAX_STARS = 5
"""Stars in one part of a pattern: the time that matching takes grows with the power of their number."""


def _is_bearable(line: str) -> bool:
    """Whether a pattern can be matched in time; one that cannot hides nothing."""
    return len(line) <= 1_000 and all(
        len(_STARS.findall(part)) <= MAX_STARS for part in line.split("/")
    )


def _is_pattern(line: str) -> bool:
    """Whether a line can be read; git skips one that it cannot (``x[z-a]``)."""
    from pathspec import GitIgnoreSpec

    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True


_STARS = re.compile(r"\*+")


class Ignored:
    """The ignore files that hold for a folder, nearest last. Immutable."""

    def __init__(self, specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()) -> None:
        self._specs = specs

    @classmethod
    def above(cls, folder: str) -> Ignored:
        """The ignore files above ``folder`` inside its repository; none when it lies in no repository."""
        chain = []
        here = os.path.abspath(folder)
        while not os.path.exists(os.path.join(here, ".git")):
            parent = os.path.dirname(here)
            if parent == here:
                return cls()
            here = parent
            chain.append(here)
        ignored = cls()._with(os.path.join(here, ".git", "info", "exclude"), here)
        for one in reversed(chain):
            ignored = ignored.below(one)
        return ignored

    def below(self, folder: str) -> Ignored:
        """These and the ignore file of ``folder``, if it has one."""
        return self._with(os.path.join(folder, ".gitignore"), os.path.abspath(folder))

    def _with(self, file: str, folder: str) -> Ignored:
        try:
            text = read(file, MAX_TEXT).decode("utf-8", "surrogateescape")
        except OSError:
            return self
        from pathspec import GitIgnoreSpec

        lines = list(filter(_is_bearable, text.splitlines()[:MAX_LINES]))
        try:
            spec = GitIgnoreSpec.from_lines(lines)
        except (ValueError, re.error):
            spec = GitIgnoreSpec.from_lines(filter(_is_pattern, lines))
        return Ignored((*self._specs, (folder, spec)))

    def file(self, path: str) -> bool:
        """Whether the file at ``path`` is ignored."""
        return bool(self._specs) and self._decide(os.path.abspath(path), "")

    def folder(self, path: str) -> bool:
        """Whether the folder at ``path`` is ignored."""
        return bool(self._specs) and self._decide(os.path.abspath(path), "/")

    def _decide(self, path: str, end: str) -> bool:
        for base, spec in reversed(self._specs):
            below = path[len(base.rstrip(os.sep)) + 1 :].replace(os.sep, "/") + end
            decided = spec.check_file(below).include
            if decided is not None:
                return bool(decided)
        return False
