"""Checkpoints that lie where fsspec reaches them (``s3://…``, ``gs://…``, ``memory://…``): brought here to convert, and put there.

A store cannot rename a folder in one step. So a new checkpoint is put beside its place first, whole; what is replaced goes only then.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fsdp2lint.bridge.stored import CannotConvert

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+(::|://)")
_PART = ".fsdp2lint-part"


def is_url(name: str) -> bool:
    """Whether fsspec is to find a checkpoint."""
    return _URL.match(name) is not None


@contextmanager
def local(old: str, new: str, force: bool) -> Iterator[tuple[Path, Path]]:
    """Where both are on this machine; what is written for a store goes there when the block ends without an exception.

    Raises:
        CannotConvert: a store cannot be reached, the old one is not there or the new one is.
    """
    with tempfile.TemporaryDirectory(prefix="fsdp2lint-") as scratch:
        target = _Remote(new) if is_url(new) else None
        if target is not None and not force and target.exists():
            raise CannotConvert(f"{new}: exists already; --force replaces it")
        source = _Remote(old).fetched(Path(scratch, "old")) if is_url(old) else Path(old)
        made = Path(scratch, "new", target.name) if target else Path(new)
        try:
            yield source, made
        except CannotConvert as problem:  # by the names that the user knows
            said = str(problem).replace(str(source), old).replace(str(made), new)
            raise CannotConvert(said) from problem
        if target is not None:
            target.put(made)


class _Remote:
    """A file or folder in a store."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            from fsspec.core import url_to_fs
        except ImportError as problem:
            raise CannotConvert(f"{url}: fsspec is not installed: pip install fsspec") from problem
        with self._telling():
            store, path = url_to_fs(url)
        self._store: Any = store
        self._path: str = path.rstrip("/")
        self.name: str = self._path.rpartition("/")[2]

    def exists(self) -> bool:
        """Whether anything is there."""
        with self._telling():
            return bool(self._store.exists(self._path))

    def fetched(self, folder: Path) -> Path:
        """A copy of it in a folder of this machine."""
        with self._telling():
            if not self._store.exists(self._path):
                raise CannotConvert(f"{self._url}: there is no such file or folder")
            folder.mkdir()
            copy = folder / self.name
            self._store.get(self._path, str(copy), recursive=self._store.isdir(self._path))
        return copy

    def put(self, made: Path) -> None:
        """Put a file or folder there, in place of what was there."""
        part = f"{self._path}{_PART}"
        with self._telling():
            try:
                self._remove(part)
                if made.is_dir():
                    self._store.makedirs(part, exist_ok=True)
                    for file in sorted(made.iterdir(), reverse=True):
                        self._store.put_file(str(file), f"{part}/{file.name}")
                else:
                    self._store.put_file(str(made), part)
            except BaseException:
                with suppress(Exception):  # the first problem is the one to report
                    self._remove(part)
                raise
            self._remove(self._path)
            self._store.mv(part, self._path, recursive=made.is_dir())

    def _remove(self, path: str) -> None:
        if self._store.exists(path):
            self._store.rm(path, recursive=True)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Name the store in whatever goes wrong there: each raises errors of its own."""
        try:
            yield
        except CannotConvert:
            raise
        except Exception as problem:
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            raise CannotConvert(f"{self._url}: {lines[0]}") from problem
