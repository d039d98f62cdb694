"""Results of earlier analyses, kept in memory for as long as the server runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from fsdp2lint.check.cache import Cache
from fsdp2lint.check.context import Keeping
from fsdp2lint.system.files import ABSENT, FILE, FOLDER, NAMES, Files, digest_of_names, names

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.check.stored import Known
    from fsdp2lint.config.settings import Plugin

MAX_KEPT = 256
"""Results; each keystroke in a file that uses FSDP makes one."""


class Shelf(Cache, Keeping):
    """A cache without a folder. It sees open buffers in place of the files on disk."""

    sees_instead = True

    def __init__(self) -> None:
        Cache.__init__(self, "")
        self._entries: dict[str, bytes] = {}
        self._files_now = Files()

    def open(self) -> Cache:
        """Itself: there is nothing to open."""
        return self

    def now(self, buffers: Mapping[str, bytes]) -> None:
        """From here on these are the open buffers."""
        self._files_now = Files(buffers)

    def state(self, path: str, was: str) -> str:
        """What is at a path now, on disk or in a buffer, told as ``was`` is told."""
        files = self._files_now
        if os.path.basename(path) == NAMES:
            return digest_of_names(names(os.path.dirname(path)))
        if was in (ABSENT, FOLDER, FILE):
            return FOLDER if files.is_dir(path) else FILE if files.is_file(path) else ABSENT
        try:
            files.read(path)
        except OSError:
            return ABSENT
        return files.seen[path]

    def rules(self, plugins: tuple[Plugin, ...] = ()) -> tuple[Rule, ...] | None:
        """Nothing: the rules themselves are here."""
        return None

    def keep_rules(self, plugins: tuple[Plugin, ...], rules: Iterable[Rule]) -> None:
        """Nothing is kept."""

    def known(self, path: str) -> Known | None:
        """Nothing: a buffer has no time of change."""
        return None

    def _read(self, name: str) -> bytes | None:
        found = self._entries.pop(name, None)
        if found is not None:
            self._entries[name] = found  # the youngest again
        return found

    def _write(self, name: str, raw: bytes) -> None:
        self._entries[name] = raw
        while len(self._entries) > MAX_KEPT:
            del self._entries[next(iter(self._entries))]

    def close(self) -> None:
        """Nothing is written."""
