"""The files that belong together: which file an import names, and who imports whom."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from fsdp2lint.source import Source, Unreadable

MAX_FOLLOWED = 400_000
"""Files beyond this size (bytes) are not followed into when another file imports them."""

MAX_FOLLOWED_TOTAL = 2_000_000
"""How many bytes of imported files are parsed for one project before imports stay unfollowed."""

TOTAL_STEPS = 400_000
"""Expressions evaluated for all entries together before each gets less and less."""

LEAST_STEPS = 3_000
"""What each entry gets at the least."""

_WORTH_FOLLOWING = (b"torch", b"RANK", b"rank", b"config", b"args")

_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(?P<origin>[.\w]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n;]*)"
    rb"|import[ \t]+(?P<plain>[^\n;]*))",
    re.MULTILINE,
)


class Budget:
    """The work that is left for a project: many entries share it, so that time grows with the files."""

    def __init__(self, total: int = TOTAL_STEPS) -> None:
        self.left = total

    def allowance(self, most: int) -> int:
        """How many steps the next entry may take before its calls are no longer entered."""
        return max(LEAST_STEPS, min(most, self.left // 8))

    def spend(self, steps: int) -> None:
        """An entry has taken so many steps."""
        self.left = max(0, self.left - steps)


class Project:
    """Sources under analysis and the files on disk that they import.

    ``asked`` are the sources in which findings are wanted; others serve facts only.
    """

    def __init__(self, asked: Sequence[Source], roots: Sequence[Path]) -> None:
        self.asked = list(asked)
        self.roots = [os.path.abspath(r) for r in roots]
        self._known: dict[str, Source | None] = {os.path.abspath(s.path): s for s in asked}
        self._folders = {f for path in self._known for f in _above(path)}
        self._followed = 0
        self.importers: list[Source] = []
        self.budget = Budget()

    @classmethod
    def of(cls, sources: Sequence[Source], roots: Sequence[Path] = ()) -> Project:
        """A project of these sources; imports are looked up beside them, in their packages, and in ``roots``."""
        return cls(sources, roots)

    def sources(self) -> Iterator[Source]:
        """Every source that can be an entry."""
        yield from self.asked
        yield from self.importers

    def path_of(self, source: Source) -> str:
        """Where a source stands."""
        return os.path.abspath(source.path)

    def resolve(self, dotted: str, level: int, importer: Source) -> str | None:
        """The file (or the folder of a namespace package) that ``from <level dots>dotted import`` names."""
        folder = os.path.dirname(os.path.abspath(importer.path))
        if level:
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            return self._file(folder, dotted)
        for root in self._search_path(folder):
            found = self._file(root, dotted)
            if found is not None:
                return found
        return None

    def resolve_below(self, package: str, name: str) -> str | None:
        """The module ``name`` of the package whose ``__init__.py`` or folder is ``package``."""
        if os.path.basename(package) == "__init__.py":
            package = os.path.dirname(package)
        elif package.endswith(".py"):
            return None
        return self._file(package, name)

    def _file(self, root: str, dotted: str) -> str | None:
        stem = os.path.join(root, *dotted.split(".")) if dotted else root
        for candidate in (stem + ".py", os.path.join(stem, "__init__.py")):
            if candidate in self._known or _is_file(candidate):
                return candidate
        if dotted and _is_dir(stem):
            return stem
        return stem if stem in self._folders else None

    def _search_path(self, folder: str) -> Iterator[str]:
        yield folder
        package = folder
        while _is_file(os.path.join(package, "__init__.py")):
            package = os.path.dirname(package)
        if package != folder:
            yield package
        for root in self.roots:
            yield root
            yield os.path.join(root, "src")

    def source(self, path: str) -> Source | None:
        """The source at ``path``; None when it cannot be read or is not worth following into."""
        if path in self._known:
            return self._known[path]
        self._known[path] = found = self._read(path)
        return found

    def _read(self, path: str) -> Source | None:
        try:
            raw = Path(path).read_bytes()
        except OSError:
            return None
        if len(raw) > MAX_FOLLOWED or self._followed + len(raw) > MAX_FOLLOWED_TOTAL:
            return None
        hands_on = os.path.basename(path) == "__init__.py"  # what it re-exports is elsewhere
        if not hands_on and not any(word in raw for word in _WORTH_FOLLOWING):
            return None
        try:
            source = Source.decode(raw, _shown(path))
            self._followed += len(raw)
            source.tree  # noqa: B018  a file that cannot be parsed is not followed
        except (Unreadable, ValueError):
            return None
        return source

    def add_importers(self, candidates: Iterable[Path], limit: int = 24) -> None:
        """Add the files among ``candidates`` that import an asked source: they may hold the program's beginning.

        Found by the text of import lines, so nothing is parsed that has nothing to do with it.
        """
        wanted = {os.path.abspath(s.path) for s in self.asked}
        stems = {_stem(path) for path in wanted}
        for path in sorted(map(os.path.abspath, candidates), key=_programs_first):
            if path in self._known or len(self.importers) >= limit:
                continue
            try:
                raw = Path(path).read_bytes()
            except OSError:
                continue
            if not any(stem in raw for stem in stems):
                continue
            if self._imports_any(raw, path, wanted):
                source = self.source(path)
                if source is not None:
                    self.importers.append(source)

    def _imports_any(self, raw: bytes, path: str, wanted: set[str]) -> bool:
        importer = Source(path, "")
        for match in _IMPORT.finditer(raw):
            for level, dotted in _imported(match):
                found = self.resolve(dotted, level, importer)
                if found in wanted:
                    return True
        return False


def _imported(match: re.Match[bytes]) -> Iterator[tuple[int, str]]:
    """The modules that an import line may name, as (level, dotted name)."""
    plain = match["plain"]
    if plain is not None:
        for name in plain.decode("utf-8", "replace").split(","):
            dotted = name.split(" as ")[0].split("#")[0].strip()
            if dotted:
                yield 0, dotted
        return
    origin = match["origin"].decode("utf-8", "replace")
    dotted = origin.lstrip(".")
    level = len(origin) - len(dotted)
    yield level, dotted
    for name in match["names"].decode("utf-8", "replace").strip("()\\ \t").split(","):
        one = name.split(" as ")[0].split("#")[0].strip()
        if one.isidentifier():
            yield level, f"{dotted}.{one}" if dotted else one


def _shown(path: str) -> str:
    """A path as a reader finds it: from here, when it lies below."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _programs_first(path: str) -> tuple[bool, str]:
    """Programs before their tests: a test is a poor picture of how a program begins."""
    return "test" in path, path


def _above(path: str) -> Iterator[str]:
    """The folders that hold a file."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def _stem(path: str) -> bytes:
    name = os.path.basename(path).removesuffix(".py")
    if name == "__init__":
        name = os.path.basename(os.path.dirname(path))
    return os.fsencode(name)


@lru_cache(maxsize=100_000)
def _is_file(path: str) -> bool:
    return os.path.isfile(path)


@lru_cache(maxsize=100_000)
def _is_dir(path: str) -> bool:
    return os.path.isdir(path)
