"""With what a run is done: the cache, the processes, what counts in place of files on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fsdp2lint.config.settings import Settings
from fsdp2lint.source.prefilter import relevant, sift, tells
from fsdp2lint.system.files import TEXTS, Files

if TYPE_CHECKING:
    from fsdp2lint.check.cache import Cache
    from fsdp2lint.check.diagnostics import Diagnostic
    from fsdp2lint.source.prefilter import Content

FEW = 64
"""Files up to which it costs less to read them than to ask the cache what they hold."""


def _as_given(settings: Settings, folder: str) -> Settings:
    return settings


class Keeping:
    """A cache that is opened when it is first needed: most runs of a hook never do."""

    sees_instead = False
    """Whether it knows what counts in place of the files on disk."""

    def __init__(self, folder: str, *, named: bool = False) -> None:
        self.folder = folder
        self.named = named
        self._cache: Cache | None = None

    def open(self) -> Cache:
        """The cache."""
        if self._cache is None:
            from fsdp2lint.check.cache import Cache

            self._cache = Cache(self.folder, named=self.named)
        return self._cache

    def close(self) -> None:
        """Write down what was learnt."""
        if self._cache is not None:
            self._cache.close()


class Means(NamedTuple):
    """With what a run is done."""

    keeping: Keeping | None = None
    jobs: int = 1
    instead: Mapping[str, bytes] = {}
    """Bytes by absolute path that count in place of those on disk."""
    profiling: bool = False
    progress: Callable[[str], None] | None = None
    """Gets what is being analysed."""
    accept: Callable[[Diagnostic], bool] | None = None
    """Is asked about each fix before it is made."""
    aim: Callable[[Settings, str], Settings] = _as_given
    """Completes the settings for the files of a folder, once there is something to analyse."""

    @property
    def cache(self) -> Cache | None:
        """The results of earlier runs."""
        return None if self.keeping is None else self.keeping.open()

    def files(self, *, digests: bool = True) -> Files:
        """The files as this run sees them, none of them read yet."""
        return Files(self.instead, digests=digests)

    def sift(
        self, files: Sequence[str], hints: Sequence[str] = ()
    ) -> Iterator[tuple[str, Content]]:
        """The relevant files with their bytes; those that the cache knows to hold nothing are not read.

        The cache knows nothing of the functions ``hints``, which make files relevant that call them.
        """
        cache = self.cache if len(files) > FEW and not hints else None
        if cache is None and not self.instead:
            yield from sift(files, hints)
            return
        everything = self.files()
        for path in files:
            full = os.path.abspath(path)
            known = None if cache is None else cache.known(full)
            if known is not None and not known.relevant:
                continue
            try:
                raw = everything.read(full)
            except OSError as error:
                yield path, error
                continue
            holds = relevant(raw) or path.endswith(TEXTS)
            if cache is not None and known is None:
                cache.learn(full, raw, holds)
            if holds or tells(raw, hints):
                yield path, raw
