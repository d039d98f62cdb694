"""The analysis of open buffers; nothing here knows of the protocol.

Results of earlier analyses, kept in memory for as long as the server runs.
"""

from __future__ import annotations

import gc
import io
import os
import threading
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from fsdp2lint.check.cache import Cache
from fsdp2lint.check.context import Keeping, Means
from fsdp2lint.check.diagnostics import Diagnostic
from fsdp2lint.check.session import Session
from fsdp2lint.config import toml
from fsdp2lint.config.settings import BadSetting
from fsdp2lint.source.source import Source
from fsdp2lint.system.files import ABSENT, FILE, FOLDER, NAMES, Files, digest_of_names, names

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.check.stored import Known
    from fsdp2lint.config.settings import Plugin

Buffers = Mapping[str, bytes]
"""The open files by their absolute paths, with the bytes that saving them would write."""


class Stopped(Exception):
    """The analysis was stopped: its text is an old one."""


@dataclass(frozen=True)
class Settings:
    """What the editor says: a configuration file, and values of its keys."""

    config_file: str | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, said: object) -> Settings:
        """From the object that an editor sends: the keys of the configuration, dashes or camel case."""
        given = {_kebab(k): v for k, v in said.items()} if isinstance(said, Mapping) else {}
        file = given.pop("configuration", None) or None
        return cls(file, {key: value for key, value in given.items() if value is not None})


class Desk:
    """Where the open buffers lie, with the results of what they were a moment ago."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.unsafe = False
        """Whether the configuration that was seen last lets unsafe fixes be made with the others."""
        self.wrong = ""
        """What is wrong with a configuration; the files of an editor's are left out, a folder's goes on without it."""
        self._shelf = Shelf()

    def check(self, buffers: Buffers, stop: threading.Event) -> list[Diagnostic]:
        """What is wrong in the open files.

        Raises:
            Stopped: ``stop`` was set on the way.
        """
        self._shelf.now(buffers)
        self.wrong = ""
        found: list[Diagnostic] = []
        try:
            for paths in self._by_configuration(buffers, stop):
                with self._noting():
                    session = self._session(buffers, paths, stop)
                    self.unsafe = bool(session.option("unsafe-fixes", False))
                    found += session.check().found
                    self.wrong = self.wrong or next(map(str, session.faults), "")
        finally:
            gc.collect()  # trees are full of circles, and analyses are made without the collector
        return found

    def fixed(
        self, buffers: Buffers, path: str, stop: threading.Event
    ) -> Sequence[tuple[Source, Source]]:
        """The files that change when all fixes of one file are made, before and after.

        Raises:
            BadSetting: a configuration is wrong.
            Stopped: ``stop`` was set on the way.
        """
        self._shelf.now(buffers)
        session = self._session(buffers, [path], stop)
        self.unsafe = bool(session.option("unsafe-fixes", False))
        return session.mend(unsafe=self.unsafe).changed

    def _by_configuration(self, buffers: Buffers, stop: threading.Event) -> list[list[str]]:
        """The open files by the configuration that counts for them: one that is wrong spoils no other."""
        session = self._session(buffers, list(buffers), stop)
        groups: dict[str | None, list[str]] = {}
        for path in buffers:
            with self._noting():
                config = session.config_of(os.path.dirname(path))
                groups.setdefault(config.file, []).append(path)
        return list(groups.values())

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except BadSetting as error:
            self.wrong = self.wrong or str(error)

    def _session(self, buffers: Buffers, paths: list[str], stop: threading.Event) -> Session:
        means = Means(instead=buffers, keeping=self._shelf, progress=partial(_go_on, stop))
        pairs = [f"{key}={toml.dumps(value)}" for key, value in self.settings.keys.items()]
        file = self.settings.config_file
        return Session(paths, config_file=file, inline=pairs, means=means, listed=paths)


def saved(text: str) -> bytes:
    """The bytes that saving a text would write: in UTF-8, or as its first lines say."""
    raw = text.encode("utf-8", "surrogatepass")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return text.encode(encoding)
    except (SyntaxError, UnicodeError, LookupError):
        return raw


def _go_on(stop: threading.Event, about: str) -> None:
    if stop.is_set():
        raise Stopped


def _kebab(name: str) -> str:
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name)


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
        """What is at a path now, on disk or in a buffer, in the form of ``was``."""
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
