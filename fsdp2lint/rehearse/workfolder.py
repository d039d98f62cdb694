"""Where a verified script works: a folder of links to the user's files.

What the script reads by a relative path is there; what it writes stays apart, from the user's files and
from what the other script writes. Files are linked and folders made, so nothing is copied before it is
written to: :func:`protect`, in the ranks, replaces a link when it is opened for writing. Of very large
trees whole folders are linked.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

LIMIT = 2_000
"""Entries after which folders are linked whole, until something is written into one."""

WHOLE = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "site-packages"})
SKIPPED = frozenset({"__pycache__"})

_WRITES = os.O_WRONLY | os.O_RDWR
_CHANGES = {"os.mkdir": 1, "os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.truncate": 1}
"""Events by which something else than the content of a file changes, and how many paths each names."""


def make(source: Path, folder: Path) -> Path:
    """Fill a new folder with links to what is in ``source``; the folder itself is left out."""
    folder.mkdir(parents=True)
    waiting = deque([(source.resolve(), folder)])
    entries: list[os.DirEntry[str]] = []
    made = 0
    while waiting:
        original, copy = waiting.popleft()
        if made <= LIMIT:
            entries = [entry for entry in _entries(original) if _wanted(entry, folder)]
            made += len(entries)
        if made > LIMIT and copy != folder:
            copy.rmdir()
            copy.symlink_to(original)
            continue
        for entry in entries:
            target = copy / entry.name
            if entry.is_dir(follow_symlinks=False) and entry.name not in WHOLE:
                target.mkdir()
                waiting.append((Path(entry.path), target))
            else:
                target.symlink_to(entry.path)
    return folder


def _wanted(entry: os.DirEntry[str], folder: Path) -> bool:
    return entry.name not in SKIPPED and not folder.is_relative_to(entry.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # what cannot be read is not there
        return []


def protect(folder: str) -> None:
    """Replace links in a folder when something is written, made or removed behind them, from here on."""

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            flags = arguments[2]
            if isinstance(flags, int) and flags & _WRITES:
                loosen(folder, os.fsdecode(arguments[0]), keep=not flags & os.O_TRUNC)
        elif event in _CHANGES:
            for path in arguments[: _CHANGES[event]]:
                if isinstance(path, str | bytes):
                    _unfold(folder, os.fsdecode(path))

    sys.addaudithook(heard)


def loosen(folder: str, path: str, *, keep: bool) -> None:
    """Put a copy of what a link in the folder points to in its place, or nothing."""
    _unfold(folder, path)
    if not os.path.islink(path) or not _inside(folder, path):
        return
    target = os.path.realpath(path)
    os.unlink(path)
    if keep and os.path.isfile(target):
        shutil.copy2(target, path)


def _unfold(folder: str, path: str) -> None:
    """Make folders of links of the linked folders that a path leads through."""
    root = os.path.realpath(folder)
    full = os.path.abspath(path)
    parts = Path(os.path.dirname(full)).parts
    for end in range(len(Path(root).parts) + 1, len(parts) + 1):
        part = os.path.join(*parts[:end])
        if os.path.islink(part) and _inside(folder, part) and os.path.isdir(part):
            original = os.path.realpath(part)
            os.unlink(part)
            os.mkdir(part)
            for entry in _entries(Path(original)):
                if entry.name not in SKIPPED:
                    os.symlink(entry.path, os.path.join(part, entry.name))


def _inside(folder: str, path: str) -> bool:
    parent = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    return Path(parent).is_relative_to(os.path.realpath(folder))


def written(folder: Path) -> Iterator[Path]:
    """The files that were written in a working folder, relative to it."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted(names):
            path = Path(parent, name)
            if not path.is_symlink():
                yield path.relative_to(folder)


def carry(worked: Path, folder: Path) -> None:
    """Bring what was written in one working folder into another."""
    for name in written(worked):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink():
            target.unlink()
        shutil.copy2(worked / name, target)


class Outside:
    """Checkpoints written outside of the working folder, kept as they were at one moment."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.kept: dict[str, Path] = {}
        """For each original path, where its copy is."""

    def keep(self, paths: Iterable[str]) -> None:
        """Copy them before another script writes to the same place."""
        for path in paths:
            if path not in self.kept and os.path.exists(path):
                target = self._folder / str(len(self.kept))
                _copy(Path(path), target)
                self.kept[path] = target

    def restore(self) -> None:
        """Put the copies back where they came from."""
        for path, copy in self.kept.items():
            original = Path(path)
            if original.is_dir():
                shutil.rmtree(original)
            _copy(copy, original)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
