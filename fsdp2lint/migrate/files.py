"""Which files a migration reads: those that speak of FSDP, and those that use or serve them."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from fsdp2lint.frameworks.text import SettingsText
from fsdp2lint.meanings.fsdp1_symbols import METHODS
from fsdp2lint.migrate.speaks import holds_fsdp1
from fsdp2lint.project.links import Finder, Folder
from fsdp2lint.source.prefilter import MAX_BYTES, relevant
from fsdp2lint.source.reading import decode, read
from fsdp2lint.source.source import NOTEBOOK, Range, Source, Unreadable
from fsdp2lint.system.discover import Exclusion, project_roots
from fsdp2lint.system.files import COMMANDS, SETTINGS, TEXTS, Files
from fsdp2lint.system.files import read as read_bytes

DEPTH = 3
"""How many imports away from a file that names FSDP another one may be."""

REQUIREMENTS = (
    *("requirements*.txt", "pyproject.toml", "setup.cfg", "environment*.yml", "environment*.yaml"),
)
LAUNCH_FILES = (
    *(f"*{end}" for end in COMMANDS),
    *REQUIREMENTS,
)

_TODO = b"TODO(fsdp2lint)"
"""What an earlier run has left to a person."""

_ASKED = re.compile(rb"--\w*fsdp|\bfsdp_", re.IGNORECASE)
"""How a launch script asks a framework for FSDP."""

_LIGHTNING = re.compile(rb"\bLightning(?:Module|CLI)\b")
"""What a file of LightningCLI trains, and who reads it."""

_OLD_PATHS = re.compile(rb"distributed\.(?:_\w+|checkpoint\._)")
"""Where imports lead to that have moved since."""

_WORDS = (b"torch", b"fsdp", b"FSDP", *(name.encode() for name in METHODS))
"""A file a few imports away is read when it holds one of these."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that speaks of FSDP and cannot be migrated, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """The sources of a migration, where absolute imports begin, and what could not be read."""

    sources: tuple[Source, ...]
    texts: tuple[Source, ...]
    """Launch scripts, lists of requirements, settings of frameworks."""
    roots: tuple[Folder, ...]
    problems: tuple[Problem, ...]


def choose(files: Sequence[str], texts: Sequence[str] = ()) -> Chosen:
    """Read the files that matter among the Python and settings ``files``, and all of ``texts``."""
    contents: dict[str, bytes] = {}
    problems: list[Problem] = []
    settings = [path for path in files if path.endswith(SETTINGS)]
    texts = list(dict.fromkeys((*texts, *(path for path in files if path.endswith(COMMANDS)))))
    files = [path for path in files if not path.endswith(TEXTS)]
    for path in files:
        try:
            contents[path] = read_bytes(path)
        except OSError as error:
            problems.append(Problem(path, f"cannot read the file: {error.strerror or error}"))
    roots = project_roots(files)
    marked = {path for path, raw in contents.items() if relevant(raw) or _TODO in raw}
    about = {path for path, raw in contents.items() if _TODO in raw or holds_fsdp1(raw)}
    old = {path for path in marked if _OLD_PATHS.search(contents[path])}
    sources: list[Source] = []
    if settings or any(map(_ASKED.search, map(_bytes, texts))):
        about |= marked  # a framework may be asked for it from there
    asking = list(_settings(settings, problems))
    if any(one.asked is not None and one.asked.framework == "Lightning" for one in asking):
        about |= {path for path, raw in contents.items() if _LIGHTNING.search(raw)}
    wanted = old | about | _near(contents, about, roots)
    wanted |= {path for path in marked - wanted if not _parses(path, contents[path])}
    for path in sorted(wanted):
        try:
            sources.append(_source(path, contents[path]))
        except Unreadable as problem:
            problems.append(Problem(path, f"line {problem.line}: {problem.message}"))
    serving = [path for path in texts if _serves(path, files, marked)]
    beside = [*_texts(serving), *asking]
    return Chosen(tuple(sources), tuple(beside), tuple(roots), tuple(problems))


def _settings(paths: Iterable[str], problems: list[Problem]) -> Iterator[SettingsText]:
    """The settings files that ask for FSDP; one that cannot be read is a problem."""
    for path in paths:
        try:
            source = read(path)
            if isinstance(source, SettingsText) and source.asked is not None:
                yield source
        except Unreadable as problem:
            problems.append(Problem(path, f"line {problem.line}: {problem.message}"))


def launch_files(paths: Sequence[str], exclusion: Exclusion) -> list[str]:
    """The launch scripts and lists of requirements below the folders among ``paths``."""
    found: list[str] = []
    for path in paths:
        for folder, folders, names in os.walk(path):

            def wanted(name: str, folder: str = folder) -> bool:
                return not exclusion.covers(os.path.normpath(os.path.join(folder, name)), name)

            folders[:] = sorted(filter(wanted, folders))
            mine = (name for name in sorted(names) if _is_launch(name) and wanted(name))
            found += (os.path.normpath(os.path.join(folder, name)) for name in mine)
    return list(dict.fromkeys(found))


def _is_launch(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in LAUNCH_FILES)


def _serves(path: str, files: Sequence[str], marked: set[str]) -> bool:
    """Whether a launch script or a list of requirements may be one of a marked file's.

    A list is for the Python files below its folder; where there are none, for those below the next folder up.
    """
    if not any(fnmatch(os.path.basename(path), pattern) for pattern in REQUIREMENTS):
        return True
    for folder in Path(os.path.abspath(path)).parents:
        inside = os.path.join(folder, "")
        below = [one for one in files if os.path.abspath(one).startswith(inside)]
        if below:
            return any(one in marked for one in below)
    return False


def _bytes(path: str) -> bytes:
    try:
        return read_bytes(path, MAX_BYTES)
    except OSError:
        return b""


def _texts(paths: Sequence[str]) -> Iterator[Source]:
    for path in paths:
        try:
            text = read_bytes(path, MAX_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue  # nothing of it is promised to be understood
        yield Source(path, text)


def _source(path: str, raw: bytes) -> Source:
    if len(raw) > MAX_BYTES and not path.endswith(NOTEBOOK):
        raise Unreadable(f"too large to be analysed: {len(raw) / 1e6:.1f} MB")
    source = decode(raw, path)
    try:
        if source.tree.code != source.text:
            raise Unreadable("the parser does not reproduce this file")
    except Unreadable as problem:
        if source.document is None:
            raise
        part, at = source.document.place(
            source, Range(problem.line, problem.column, problem.line, problem.column)
        )
        said = f"in cell {part.cell}: {problem.message}"
        raise Unreadable(said, at.line, at.column) from problem
    return source


def _parses(path: str, raw: bytes) -> bool:
    """Whether Python itself can read a file: the others are looked at again, and said to be wrong."""
    try:
        ast.parse(decode(raw, path).text)
    except (Unreadable, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _near(contents: dict[str, bytes], marked: set[str], roots: Sequence[Folder]) -> set[str]:
    """The files up to some imports away from the marked ones, in either direction, that could matter."""
    if not marked:
        return set()
    absolute = {os.path.abspath(path): path for path in contents}
    finder = Finder(roots, Files(), absolute)
    beside: dict[str, set[str]] = {path: set() for path in contents}
    for path, raw in contents.items():
        for found in finder.imported(raw, path):
            other = absolute.get(found)
            if other is not None and other != path:
                beside[path].add(other)
                beside[other].add(path)
    return {path for path in _reach(beside, marked) if _could_matter(contents[path])}


def _reach(beside: dict[str, set[str]], start: Iterable[str]) -> set[str]:
    reached, edge = set(start), set(start)
    for _ in range(DEPTH):
        edge = {other for path in edge for other in beside[path]} - reached
        reached |= edge
    return reached


def _could_matter(raw: bytes) -> bool:
    return any(word in raw for word in _WORDS)
