"""Which files import which, read from the text of import lines: nothing is parsed for it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from fsdp2lint.system.files import NOTEBOOK, Files, above

Folder = str | os.PathLike[str]

_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(?P<origin>[.\w]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n;]*)"
    rb"|import[ \t]+(?P<plain>[^\n;]*))",
    re.MULTILINE,
)

_WORD = re.compile(rb"\w+")

_OUTSIDE = frozenset(
    """
    __future__ abc argparse asyncio collections contextlib copy dataclasses datetime enum functools
    glob importlib inspect io itertools json logging math numpy os pathlib pickle random re shutil
    string subprocess sys tempfile threading time torch traceback transformers typing
    typing_extensions warnings
    """.split()
)
"""Modules that most files import and that no project keeps beside its programs: not searched for."""


class Finder:
    """Where imports lead: beside the importing file, in its packages, and in the ``roots``.

    ``known`` are files that count as being there whether the disk has them or not.
    """

    def __init__(self, roots: Sequence[Folder], files: Files, known: Iterable[str] = ()) -> None:
        self.roots = [os.path.abspath(r) for r in roots]
        self.files = files
        self._known = set(known)
        self._folders = {f for path in self._known for f in above(path)}
        self._found: dict[tuple[str, str, int], str | None] = {}
        self._words_of: dict[str, frozenset[bytes]] = {}

    def resolve(self, dotted: str, level: int, importer: str) -> str | None:
        """The file (or the folder of a namespace package) that ``from <level dots>dotted import`` names.

        ``importer`` is the path of the file in which the import is.
        """
        folder = os.path.dirname(os.path.abspath(importer))
        key = (folder, dotted, level)
        if key not in self._found:
            self._found[key] = self._resolved(folder, dotted, level)
        return self._found[key]

    def _resolved(self, folder: str, dotted: str, level: int) -> str | None:
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

    def imported(
        self, raw: bytes, importer: str, names: Collection[str] | None = None
    ) -> Iterator[str]:
        """The local files that the import lines of a text lead to, packages on the way included.

        With ``names``, only modules of these names are looked for.
        """
        if importer.endswith(NOTEBOOK):
            raw = _program(raw, importer)
        for match in _IMPORT.finditer(raw):
            for level, dotted in _named(match):
                if not level and dotted.partition(".")[0] in _OUTSIDE:
                    continue
                if names is not None and dotted and dotted.rpartition(".")[2] not in names:
                    continue
                found = self.resolve(dotted, level, importer)
                if found is not None and found.endswith(".py"):
                    yield found

    def importing(
        self, candidates: Iterable[str], wanted: Collection[str]
    ) -> Iterator[tuple[str, list[str]]]:
        """The files among ``candidates`` that import wanted ones, each with those."""
        names = {_stem(path) for path in wanted}
        words = frozenset(os.fsencode(name) for name in names)
        for path in candidates:
            if not words.isdisjoint(self._words(path)):
                raw = self.files.read(path)
                targets = [one for one in self.imported(raw, path, names) if one in wanted]
                if targets:
                    yield path, targets

    def _words(self, path: str) -> frozenset[bytes]:
        """The words in the import lines of a file, and the packages that its lines of dots alone name."""
        known = self._words_of.get(path)
        if known is None:
            known = self._words_of[path] = frozenset(self._imported_words(path))
        return known

    def _imported_words(self, path: str) -> Iterator[bytes]:
        try:
            raw = self.files.read(path)
        except OSError:
            return
        if path.endswith(NOTEBOOK):
            raw = _program(raw, path)
        for match in _IMPORT.finditer(raw):
            yield from _WORD.findall(match.group())
            if match["origin"] is not None and not match["origin"].strip(b"."):
                folder = path
                for _ in match["origin"]:
                    folder = os.path.dirname(folder)
                yield os.fsencode(os.path.basename(folder))

    def _file(self, root: str, dotted: str) -> str | None:
        stem = os.path.join(root, *dotted.split(".")) if dotted else root
        for candidate in (stem + ".py", os.path.join(stem, "__init__.py")):
            if candidate in self._known or self.files.is_file(candidate):
                return candidate
        if dotted and self.files.is_dir(stem):
            return stem
        return stem if stem in self._folders else None

    def _search_path(self, folder: str) -> Iterator[str]:
        yield folder
        package = folder
        while self.files.is_file(os.path.join(package, "__init__.py")):
            package = os.path.dirname(package)
        if package != folder:
            yield package
        for root in sorted(self.roots, key=lambda root: _distance(root, folder)):
            yield root
            yield os.path.join(root, "src")


def _distance(root: str, folder: str) -> tuple[bool, int]:
    """Sorts the roots that hold a folder first, the nearest of them before the others.

    Two projects may each have a package of one name, and what lies in one imports its own.
    """
    holds = folder == root or folder.startswith(root.rstrip(os.sep) + os.sep)
    return not holds, -len(root) if holds else 0


_SECOND_RATE = re.compile(
    r"(^|[/_.-])(tests?|testing|deprecated|legacy|old|archive[ds]?)([/_.-]|$)"
)


def is_second_rate(path: str) -> bool:
    """Whether a program looks like a test or like one that nobody runs any more: a poor picture of the project."""
    return _SECOND_RATE.search(path.replace(os.sep, "/")) is not None


def _program(raw: bytes, path: str) -> bytes:
    """The program of a notebook; nothing of a broken one."""
    from fsdp2lint.source.reading import decode
    from fsdp2lint.source.source import Unreadable

    try:
        return decode(raw, path).text.encode("utf-8", "surrogatepass")
    except Unreadable:
        return b""


def _stem(path: str) -> str:
    """The word by which imports name a module: an import of it ends in this word, or in dots."""
    name = os.path.basename(path).removesuffix(".py")
    if name == "__init__":
        name = os.path.basename(os.path.dirname(path))
    return name


def _named(match: re.Match[bytes]) -> Iterator[tuple[int, str]]:
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
