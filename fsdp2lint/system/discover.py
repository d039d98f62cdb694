"""Which files a run looks at: the paths that the user named, folders walked, ignore files respected.

``.gitignore`` files: what git would not look at, we do not look at either.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from fsdp2lint.system.files import MAX_TEXT, read

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

PROJECT_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")

SUFFIXES = (".py", ".pyw", ".ipynb")

DATA = (".cfg", ".csv", ".ini", ".json", ".jsonl", ".toml", ".txt", ".xml", ".yaml", ".yml")
"""Ends of the names of files that are no Python, whatever they hold."""

EXCLUDED = (
    ".bzr", ".direnv", ".eggs", ".fsdp2lint_backup", ".fsdp2lint_cache", ".git", ".git-rewrite", ".hg",
    ".ipynb_checkpoints", ".mypy_cache", ".nox", ".pants.d", ".pyenv", ".pytest_cache", ".pytype",
    ".ruff_cache", ".svn", ".tox", ".venv", ".vscode", "__pypackages__", "_build", "buck-out",
    "build", "dist", "node_modules", "site-packages", "venv",
)  # fmt: skip
"""Names of folders that are never walked into, the same as ruff's, if they hold no package."""

PACKAGES = frozenset(("build", "dist", "venv"))
"""Those of them that people give to packages of their own too, as `mmengine.dist` is one."""


CONFIGURATIONS = (".fsdp2lint.toml", "fsdp2lint.toml", "pyproject.toml")
"""Names of files that may say what is left out in their folder, from the first choice to the last."""


_TESTS = ("test", "tests", "unit_tests", "integration_tests")


def is_test(path: str) -> bool:
    """Whether a file belongs to tests, by its name or by the name of a folder on its path as the user gave it."""
    *folders, name = path.replace("\\", "/").split("/")
    stem = name.partition(".")[0]
    return (
        stem.startswith("test_")
        or stem.endswith("_test")
        or stem == "conftest"
        or any(one in _TESTS for one in folders)
    )


def is_left_out(name: str, folder: str) -> bool:
    """Whether a folder below ``folder`` is never walked into, where nobody says what to leave out."""
    return name in EXCLUDED and not (name in PACKAGES and _is_package(os.path.join(folder, name)))


def _is_package(folder: str) -> bool:
    """Whether a folder is a package: it says so, or it lies in one and holds code."""
    if os.path.isfile(os.path.join(folder, "__init__.py")):
        return True
    around = os.path.dirname(os.path.abspath(folder))
    if not os.path.isfile(os.path.join(around, "__init__.py")):
        return False
    try:
        return any(name.endswith(".py") for name in os.listdir(folder))
    except OSError:
        return False


class NoSuchPath(Exception):
    """A path that the user named does not exist, may not be read, or is neither a file nor a folder."""


class Exclusion:
    """What to leave out: names or glob patterns, matched against a name or a whole path."""

    def __init__(
        self,
        patterns: Sequence[str] = EXCLUDED,
        *,
        gitignore: bool = True,
        force: bool = False,
        top: str | None = None,
        suffixes: tuple[str, ...] = SUFFIXES,
        packages: frozenset[str] = PACKAGES,
    ) -> None:
        self._packages = packages  # names among the patterns that leave out no package
        self._names = frozenset(p for p in patterns if not _is_pattern(p))
        self._patterns = _spelled_out([p.rstrip("/") for p in patterns if _is_pattern(p)])
        self._whole = tuple(map(os.path.abspath, self._patterns))
        self._top = top or os.getcwd()  # folders above it are not looked at
        self.gitignore = gitignore
        self.suffixes = suffixes  # of the files that are looked for in folders
        self.force = force  # leave out files too that the user named

    def covers(self, path: str, name: str) -> bool:
        """Whether the file or folder at ``path`` is left out."""
        if name in self._names and not (name in self._packages and _is_package(path)):
            return True
        if not self._patterns:
            return False
        full = os.path.abspath(path)
        return any(fnmatch(name, p) or fnmatch(path, p) for p in self._patterns) or any(
            fnmatch(full, p) for p in self._whole
        )

    def covers_named(self, path: str) -> bool:
        """Whether a file that the user named is left out, itself or by a folder above it."""
        # folders above the project are not the user's to exclude: the checkout may lie in `build/`
        for top in (self._top, os.getcwd(), os.path.dirname(path) or "."):
            inside = os.path.relpath(path, top)
            if not inside.startswith(os.pardir):
                break
        parts = inside.split(os.sep)
        return any(
            self.covers(os.path.join(top, *parts[: n + 1]), part) for n, part in enumerate(parts)
        )


def discover(
    paths: Sequence[str],
    exclusion: Exclusion,
    inside: Callable[[str], Exclusion] | None = None,
    unread: list[OSError] | None = None,
) -> list[str]:
    """The files to look at, sorted, each once, spelled as the user spelled the path above it.

    ``inside`` says what is left out in a folder, where that differs from one folder to the next: it is
    asked about each path that was named and about each folder that has a configuration file. ``unread``
    gets the errors of the folders that could not be read.

    Raises:
        NoSuchPath: a path does not exist.
    """
    found: dict[str, str] = {}
    for path in paths:
        folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
        for file in _files(path, inside(folder) if inside else exclusion, inside, unread):
            found.setdefault(os.path.abspath(file), file)
    return sorted(found.values())


def is_python(path: str, raw: bytes) -> bool:
    """Whether a file with these bytes, of a name that says nothing, is Python: by its first line, or as it parses."""
    if path.endswith(DATA):
        return False
    if raw.startswith(b"#!"):
        return b"python" in raw.partition(b"\n")[0]
    from ast import parse
    from warnings import catch_warnings, simplefilter

    try:
        with catch_warnings():
            simplefilter("ignore")
            return bool(parse(raw).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def project_roots(paths: Sequence[str]) -> list[str]:
    """Where absolute imports may begin: the current folder and the projects that hold the files."""
    folders = dict.fromkeys(os.path.dirname(os.path.abspath(path)) for path in paths)
    found = (project_of(folder) for folder in folders)
    return list(dict.fromkeys((os.getcwd(), *(root for root in found if root is not None))))


def project_of(folder: str) -> str | None:
    """The nearest folder with a project, from an absolute ``folder`` upwards."""
    while not any(os.path.exists(os.path.join(folder, mark)) for mark in PROJECT_MARKS):
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return None
    return folder


def _files(
    path: str,
    exclusion: Exclusion,
    inside: Callable[[str], Exclusion] | None,
    unread: list[OSError] | None,
) -> Iterator[str]:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NoSuchPath(f"{path}: {reason}") from error
    if stat.S_ISDIR(mode):
        yield from _walk(os.path.normpath(path), exclusion, inside, unread)
    elif not stat.S_ISREG(mode):
        raise NoSuchPath(f"{path}: neither a file nor a folder")
    elif not (exclusion.force and exclusion.covers_named(path)):
        yield os.path.normpath(path)


def _walk(
    root: str,
    exclusion: Exclusion,
    inside: Callable[[str], Exclusion] | None,
    unread: list[OSError] | None,
) -> Iterator[str]:
    """The Python files below ``root``. Links to folders are not followed, so no loop is possible."""
    pending = [(root, Ignored.above(root) if exclusion.gitignore else Ignored(), exclusion)]
    while pending:
        folder, ignored, exclusion = pending.pop()
        try:
            with os.scandir(folder) as entries:
                listed = list(entries)
        except OSError as error:
            if folder == root:
                raise NoSuchPath(f"{folder}: {error.strerror or error}") from error
            if unread is not None:
                unread.append(error)
            continue
        names = {entry.name for entry in listed}
        if inside is not None and folder != root and not names.isdisjoint(CONFIGURATIONS):
            exclusion = inside(folder)
        if exclusion.gitignore and ".gitignore" in names:
            ignored = ignored.below(folder)
        prefix = "" if folder == "." else folder + os.sep if folder != os.sep else folder
        for entry in listed:
            path = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if not exclusion.covers(path, entry.name) and not ignored.folder(path):
                    pending.append((path, ignored, exclusion))
            elif entry.name.endswith(exclusion.suffixes) and _is_file(entry):
                if not exclusion.covers(path, entry.name) and not ignored.file(path):
                    yield path


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False  # a link that leads in a circle


def _spelled_out(patterns: Sequence[str]) -> tuple[str, ...]:
    if not patterns:
        return ()
    from fsdp2lint.system.globs import spelled_out

    return tuple(one for pattern in patterns for one in spelled_out(pattern))


def _is_pattern(text: str) -> bool:
    return any(c in text for c in "*?[{/" + os.sep)


MAX_LINES = 10_000
MAX_STARS = 5
"""Stars in one part of a pattern: the time that matching takes grows with the power of their number."""


def _is_bearable(line: str) -> bool:
    """Whether a pattern can be matched in time; one that cannot hides nothing."""
    return len(line) <= 1_000 and all(
        len(_STARS.findall(part)) <= MAX_STARS for part in line.split("/")
    )


def _is_readable(line: str) -> bool:
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
            spec = GitIgnoreSpec.from_lines(filter(_is_readable, lines))
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
