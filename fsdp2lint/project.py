"""The files that belong together: which file an import names, and who imports whom."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fsdp2lint.files import Files
from fsdp2lint.links import Finder, Folder
from fsdp2lint.model.told import NOTHING_TOLD, Told
from fsdp2lint.source import Source, Unreadable

if TYPE_CHECKING:
    from fsdp2lint.torch_api import Release

MAX_FOLLOWED = 400_000
"""Files beyond this size (bytes) are not followed into when another file imports them."""

MAX_FOLLOWED_TOTAL = 2_000_000
"""How many characters of imported files belong to one project before imports stay unfollowed."""

TOTAL_STEPS = 330_000
"""Expressions evaluated for all entries together before each gets less and less."""

LEAST_STEPS = 1_500
"""What each entry gets at the least."""

SHORT = 2_000
"""Files of fewer bytes are followed into whatever they hold."""

_WORTH_FOLLOWING = (b"torch", b"RANK", b"rank", b"config", b"args")


class Ration:
    """How many steps an entry may take before its calls are no longer entered, and what that changed for it.

    ``needed`` is the least ration that would have been as good, as long as nothing was ``refused``.
    """

    __slots__ = ("most", "needed", "refused", "spent", "steps")

    def __init__(self, most: int, steps: int) -> None:
        self.most = most
        self.steps = steps
        self.needed = 0
        self.refused = False
        self.spent = 0

    def covers(self, steps: int) -> bool:
        """Whether so many steps may be taken."""
        if steps > self.steps:
            self.refused = True
            return False
        if steps > self.needed:
            self.needed = steps
        return True

    def half_of(self, steps: int) -> int:
        """So many steps, but half of the ration at the most."""
        return steps if self.covers(2 * steps) else self.steps // 2

    def same_with(self, steps: int) -> bool:
        """Whether a ration of so many steps would have changed nothing."""
        return steps == self.steps or (not self.refused and steps >= self.needed)


class Budget:
    """The work that is left for a project: many entries share it, so that time grows with the files.

    ``patience`` says how many times as much as usual that is, and what one entry may spend of it.
    """

    def __init__(self, total: int = TOTAL_STEPS, patience: int = 1) -> None:
        self.left = total * patience
        self.patience = patience
        self.rations: list[Ration] = []

    def ration(self, usual: int) -> Ration:
        """What the next entry may spend, ``usual`` at the most where there is no more patience."""
        most = usual * self.patience
        ration = Ration(most, _share(self.left, most))
        self.rations.append(ration)
        return ration

    def spend(self, steps: int) -> None:
        """The entry that got the last ration has taken so many steps."""
        self.rations[-1].spent += steps
        self.left = max(0, self.left - steps)

    def allows(self, rations: Iterable[Ration]) -> bool:
        """Whether the entries that had these rations would find nothing changed now."""
        left = self.left
        for ration in rations:
            if not ration.same_with(_share(left, ration.most)):
                return False
            left = max(0, left - ration.spent)
        return True

    def repeat(self, rations: Iterable[Ration]) -> None:
        """Spend what the entries that had these rations have spent."""
        for ration in rations:
            self.left = max(0, self.left - ration.spent)


def _share(left: int, most: int) -> int:
    return max(LEAST_STEPS, min(most, left // 8))


class Project:
    """Sources under analysis and the files on disk that they import.

    ``asked`` are the sources in which findings are wanted, beside the ``settings`` of frameworks; others serve facts only. ``programs`` are more
    sources from which runs may begin. ``told`` is what the configuration says of functions, ``target`` the
    oldest torch release that the code is for; None when nobody named it.
    """

    def __init__(
        self,
        asked: Sequence[Source],
        roots: Sequence[Folder],
        told: Told = NOTHING_TOLD,
        files: Files | None = None,
        target: Release | None = None,
        decoded: dict[str, Source | None] | None = None,
    ) -> None:
        self.asked = [source for source in asked if not source.is_settings]
        self.settings = [source for source in asked if source.is_settings]
        self.told = told
        self.target = target
        self.files = files or Files()
        self._known: dict[str, Source | None] = {os.path.abspath(s.path): s for s in asked}
        self._finder = Finder(roots, self.files, self._known)
        self._followed = 0
        self._read_before = {} if decoded is None else decoded
        self.programs: list[Source] = []
        self.budget = Budget()

    @classmethod
    def of(
        cls,
        sources: Sequence[Source],
        roots: Sequence[Folder] = (),
        told: Told = NOTHING_TOLD,
        files: Files | None = None,
        target: Release | None = None,
        decoded: dict[str, Source | None] | None = None,
    ) -> Project:
        """A project of these sources; imports are looked up beside them, in their packages, and in ``roots``.

        ``decoded`` holds the other files that were read for an earlier version of the project, and gets
        those that are read for this one.
        """
        return cls(sources, roots, told, files, target, decoded)

    def add_programs(self, sources: Iterable[Source]) -> None:
        """More sources from which runs may begin."""
        for source in sources:
            self.programs.append(source)
            self._known[self.path_of(source)] = source

    def path_of(self, source: Source) -> str:
        """Where a source stands."""
        return os.path.abspath(source.path)

    def resolve(self, dotted: str, level: int, importer: Source) -> str | None:
        """The file (or the folder of a namespace package) that ``from <level dots>dotted import`` names."""
        return self._finder.resolve(dotted, level, importer.path)

    def resolve_below(self, package: str, name: str) -> str | None:
        """The module ``name`` of the package whose ``__init__.py`` or folder is ``package``."""
        return self._finder.resolve_below(package, name)

    def source(self, path: str) -> Source | None:
        """The parsed source at ``path``; None when it cannot be read or is not worth following into."""
        source = self.followed(path)
        return source if source is not None and is_parsed(source) else None

    def followed(self, path: str) -> Source | None:
        """The source at ``path``, perhaps not parsed yet: many a module is imported and never used."""
        if path not in self._known:
            self._known[path] = self._read(path)
        return self._known[path]

    def passed_through(self, path: str) -> Source | None:
        """The text at ``path``, for whoever asks only where its imports lead: it may be parsed, or not."""
        return self._known[path] if path in self._known else self._decoded(path)

    def _read(self, path: str) -> Source | None:
        source = self._decoded(path)
        if source is None or self._followed + len(source.text) > MAX_FOLLOWED_TOTAL:
            return None
        self._followed += len(source.text)
        return source

    def _decoded(self, path: str) -> Source | None:
        """The text of a file that may be worth following into."""
        if path not in self._read_before:
            self._read_before[path] = self._on_disk(path)
        return self._read_before[path]

    def _on_disk(self, path: str) -> Source | None:
        try:
            raw = self.files.read(path)
        except OSError:
            return None
        if len(raw) > MAX_FOLLOWED:
            return None
        # what a package or a short file re-exports is elsewhere
        hands_on = os.path.basename(path) == "__init__.py" or len(raw) < SHORT
        if not hands_on and not any(word in raw for word in _WORTH_FOLLOWING):
            return None
        try:
            source = Source.decode(raw, _shown(path))
        except (Unreadable, ValueError):
            return None
        source.followed = True
        return source


def is_parsed(source: Source) -> bool:
    """Whether a source has a tree; it is parsed if it was not yet."""
    try:
        source.tree  # noqa: B018
    except (Unreadable, ValueError):
        return False
    return True


def _shown(path: str) -> str:
    """A path as a reader finds it: from here, when it lies below."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
