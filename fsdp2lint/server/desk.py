"""The analysis of open buffers; nothing here knows of the protocol."""

from __future__ import annotations

import gc
import io
import os
import threading
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fsdp2lint.check.context import Means
from fsdp2lint.check.diagnostics import Diagnostic
from fsdp2lint.check.session import Session
from fsdp2lint.config import toml
from fsdp2lint.config.settings import BadSetting
from fsdp2lint.server.shelf import Shelf
from fsdp2lint.source.source import Source

Buffers = Mapping[str, bytes]
"""The open files by their absolute paths, with the bytes that saving them would write."""


class Stopped(Exception):
    """The analysis was told to stop: its text is an old one."""


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
