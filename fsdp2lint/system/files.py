"""The files of a run as they are on disk, or as something else says that they are.

Whatever is asked is remembered with its answer, so that a stale result is known later.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping

NOTEBOOK = ".ipynb"

SETTINGS = (".yaml", ".yml", ".json")
"""Ends of the names of files by which frameworks are set up."""

COMMANDS = (".sh", ".bash", ".slurm", ".sbatch", ".job", ".mk", "Makefile")
"""Ends of the names of files that hold commands."""

TEXTS = (*SETTINGS, *COMMANDS)
"""Ends of the names of files that are checked and hold no Python."""

ABSENT, FOLDER, FILE = "", "d", "f"

NAMES = "*"
"""Below a folder: the names of what lies directly in it."""

MAX_READ = 64_000_000
"""Bytes of the largest file that is read."""
MAX_TEXT = 2_000_000
"""Bytes of the largest file of settings, patterns or requirements."""

_BINARY = getattr(os, "O_BINARY", 0)


class Files:
    """Files by their absolute paths. ``instead`` holds bytes that count in place of those on disk;
    without ``digests`` it is remembered that a file was read, not what it held.
    """

    def __init__(self, instead: Mapping[str, bytes] | None = None, *, digests: bool = True) -> None:
        self.instead: Mapping[str, bytes] = instead or {}
        self._folders = {f for path in self.instead for f in above(path)}
        self._digests = digests
        self.seen: dict[str, str] = {}
        """What was asked about, and the answer: :data:`ABSENT`, :data:`FOLDER`, :data:`FILE`, or the
        digest of the bytes where they were read."""

    def read(self, path: str) -> bytes:
        """The bytes of a file.

        Raises:
            OSError: it cannot be read.
        """
        raw = self.instead.get(path)
        if raw is None:
            try:
                raw = read(path)
            except OSError:  # a folder may be asked for as a file: it is there all the same
                self.seen[path] = FOLDER if kind(path) == FOLDER else ABSENT
                raise
        self.seen[path] = digest(raw) if self._digests else FILE
        return raw

    def is_file(self, path: str) -> bool:
        """Whether a file is there."""
        return self._kind(path) not in (ABSENT, FOLDER)

    def is_dir(self, path: str) -> bool:
        """Whether a folder is there."""
        return self._kind(path) == FOLDER

    def names(self, folder: str) -> list[str]:
        """What lies directly in a folder, by name."""
        inside = os.path.join(folder, "")
        below = {
            p[len(inside) :].partition(os.sep)[0] for p in self.instead if p.startswith(inside)
        }
        found = names(folder)
        self.seen[os.path.join(folder, NAMES)] = digest_of_names(found)
        return sorted({*found, *below})

    def _kind(self, path: str) -> str:
        known = self.seen.get(path)
        if known is None:
            if path in self.instead:
                known = FILE
            elif path in self._folders:
                known = FOLDER
            else:
                known = kind(path)
            self.seen[path] = known
        return known


def names(folder: str) -> list[str]:
    """What lies directly in a folder on disk, by name."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def digest_of_names(found: list[str]) -> str:
    """A mark by which the content of a folder is known again."""
    return digest("\0".join(found).encode("utf-8", "surrogateescape"))


def kind(path: str) -> str:
    """What is there on disk."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return ABSENT
    if mode & 0o170000 == 0o040000:
        return FOLDER
    return FILE if mode & 0o170000 == 0o100000 else ABSENT


def read(path: str, most: int = MAX_READ) -> bytes:
    """The bytes of a file; twice as fast as ``open`` for the thousands of files that hold nothing.

    Raises:
        OSError: it cannot be read, is no file (a pipe would be waited for without end), or is larger than
            ``most``: its size is asked before anything is read.
    """
    descriptor = os.open(path, os.O_RDONLY | _BINARY | getattr(os, "O_NONBLOCK", 0))
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "neither a file nor a folder", path)
        if status.st_size > most:
            size = f"{status.st_size / 1e6:,.0f} MB where {most / 1e6:,.0f} MB is the limit"
            raise OSError(errno.EFBIG, f"too large: {size}", path)
        wanted = status.st_size + 1
        raw = os.read(descriptor, wanted)
        if len(raw) < wanted - 1:  # read may return less than was asked for
            parts = [raw]
            while parts[-1]:
                parts.append(os.read(descriptor, 1 << 20))
            raw = b"".join(parts)
        return raw
    finally:
        os.close(descriptor)


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether a path, links followed, is one of the folders or lies below one."""
    real = os.path.realpath(path)
    tops = (os.path.realpath(folder) for folder in folders)
    return any(real == top or real.startswith(os.path.join(top, "")) for top in tops)


def digest(raw: bytes) -> str:
    """A mark by which bytes are known again."""
    from hashlib import blake2b

    return blake2b(raw, digest_size=16).hexdigest()


def above(path: str) -> list[str]:
    """The folders that hold a path, the nearest first."""
    found = []
    while (folder := os.path.dirname(path)) != path:
        found.append(folder)
        path = folder
    return found
