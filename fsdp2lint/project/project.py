"""The files that belong together: which file an import names, and who imports whom."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from fsdp2lint.model.hints import NO_HINTS, Hints
from fsdp2lint.project.links import Finder, Folder
from fsdp2lint.source.reading import decode
from fsdp2lint.source.source import Source, Unreadable
from fsdp2lint.system.files import Files

if TYPE_CHECKING:
    from fsdp2lint.torch_api import Release

MAX_FOLLOWED = 400_000
"""Files beyond this size (bytes) are not followed into when another file imports them."""

MAX_FOLLOWED_TOTAL = 6_000_000
"""How many characters of imported files belong to one project before imports stay unfollowed."""

TOTAL_STEPS = 330_000
"""Expressions evaluated for all entries that no program reaches together, before each gets less and less."""

PROGRAM_STEPS = 5
"""So many times the usual steps a program may take, as long as all together have taken no more than these:"""

ALL_PROGRAMS_STEPS = 600_000
"""Those that have sharded a model have as many of their own: others of the project take nothing of it."""

SHARDING_STEPS = 10
"""So many times the usual steps a program may take that has sharded a model by then: how it trains comes next."""

OF_ASIDE = 4
"""All that is aside gets this part of what others get: it shows little of what is used, and its runs are kept too."""

LEAST_STEPS = 1_500
"""What each entry gets at the least."""


class Ration:
    """How many steps an entry may take before its calls are no longer entered, and what that changed for it.

    ``needed`` is the least ration that would have been as good, as long as nothing was ``refused``. A
    ``program`` has at ``least`` the usual steps, whatever the others took; one that is ``aside`` has what those
    before it have left.
    """

    __slots__ = (
        "before",
        "interest",
        "least",
        "most",
        "needed",
        "program",
        "refused",
        "shards",
        "spent",
        "steps",
        "trains",
    )

    def __init__(
        self,
        least: int,
        most: int,
        *,
        program: bool = False,
        interest: Interest = "about",
        before: Ration | None = None,
        trains: bool = True,
    ) -> None:
        self.least = least
        self.most = most
        self.program = program
        self.interest = interest
        self.before = before
        """What the entry had until it sharded a model."""
        self.shards = before is not None
        self.trains = trains
        self.steps = most
        self.needed = 0
        self.refused = False
        self.spent = 0

    @property
    def pool(self) -> Pool:
        """What it is taken from."""
        return self.program, self.interest, self.shards

    def share_of(self, left: int) -> int:
        """How many steps it comes to when so many are left for all.

        Programs come in the order of their interest, and are few. One that is followed to its end tells more
        than several that end before they train: the first of those that train gets most of it.
        """
        if self.program:
            share = left * 2 // 3 if self.trains else left // 4
        else:
            share = left // 8
        return max(self.least, min(self.most, share))

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


Interest = Literal["about", "near", "tests", "aside"]
INTERESTS: tuple[Interest, ...] = get_args(Interest)
"""How much the work is about what begins in a file: about it, near to what it is about, about it in a test, or not at
all."""
Pool = tuple[bool, Interest, bool]
"""Whether it is for programs, of what interest, and whether for those that have sharded a model."""


class Budget:
    """The work that is left for a project, so that time grows with the files.

    Programs have their own: each may take its usual steps and, while all together have not taken too many,
    :data:`PROGRAM_STEPS` times as much. The many other entries share what is theirs. ``patience`` says how many
    times as much as usual that is, and what one entry may spend of it: patience is for what the work is about.
    All else has budgets of its own and no patience, ``tests`` and what is ``aside`` no more than usual for a program;
    the budget of what is ``aside`` is small, and there is no least.
    """

    def __init__(self, total: int = TOTAL_STEPS, patience: int = 1) -> None:
        self.left: dict[Pool, int] = {
            (program, interest, shards): steps // OF_ASIDE
            if interest == "aside"
            else steps * (patience if interest == "about" else 1)
            for program, steps in ((True, ALL_PROGRAMS_STEPS), (False, total))
            for interest in INTERESTS
            for shards in (False, True)
        }
        """What programs and other entries have left."""
        self.patience = patience
        self.rations: list[Ration] = []

    def ration(
        self,
        usual: int,
        *,
        program: bool = False,
        interest: Interest = "about",
        trains: bool = True,
        chosen: bool = False,
    ) -> Ration:
        """What the next entry may spend, ``usual`` at the most for one that is no program and without patience.

        One that was ``chosen`` because it leads to sharding that nothing else reaches has all that a program may have.
        """
        own = usual * self.patience if interest == "about" else usual
        if program:
            briefly = interest in ("tests", "aside")
            most = usual if briefly else max(usual * PROGRAM_STEPS, own)
            least = most if chosen else LEAST_STEPS if interest == "aside" else own
            ration = Ration(least, most, program=True, interest=interest, trains=trains)
        else:
            ration = Ration(LEAST_STEPS, own, interest=interest)
        return self._given(ration)

    def for_sharding(self, ration: Ration, usual: int) -> Ration:
        """What an entry may spend instead of a ration when it has sharded a model: it is a program, whoever starts it."""
        most = max(usual * SHARDING_STEPS, ration.steps)
        return self._given(
            Ration(ration.steps, most, program=True, interest=ration.interest, before=ration)
        )

    def _given(self, ration: Ration) -> Ration:
        ration.steps = ration.share_of(self.left[ration.pool])
        self.rations.append(ration)
        return ration

    def spend(self, steps: int) -> None:
        """The entry that got the last ration has taken so many steps: of what it had before, then of that."""
        last = self.rations[-1]
        if last.before is not None:
            first = min(steps, last.before.steps)
            self._take(last.before, first)
            steps -= first
        self._take(last, steps)

    def _take(self, ration: Ration, steps: int) -> None:
        ration.spent += steps
        self.left[ration.pool] = max(0, self.left[ration.pool] - steps)

    def allows(self, rations: Iterable[Ration]) -> bool:
        """Whether the entries that had these rations would find nothing changed now."""
        left = dict(self.left)
        for ration in rations:
            if not ration.same_with(ration.share_of(left[ration.pool])):
                return False
            left[ration.pool] = max(0, left[ration.pool] - ration.spent)
        return True

    def repeat(self, rations: Iterable[Ration]) -> None:
        """Spend what the entries that had these rations have spent."""
        for ration in rations:
            self.left[ration.pool] = max(0, self.left[ration.pool] - ration.spent)


class Project:
    """Sources under analysis and the files on disk that they import.

    ``asked`` are the sources in which findings are wanted, beside the ``settings`` of frameworks; others serve facts only. ``programs`` are more
    sources from which runs may begin. ``hints`` is what the configuration says of functions, ``target`` the
    oldest torch release that the code is for; None when nobody named it.
    """

    def __init__(
        self,
        asked: Sequence[Source],
        roots: Sequence[Folder],
        hints: Hints = NO_HINTS,
        files: Files | None = None,
        target: Release | None = None,
        decoded: dict[str, Source | None] | None = None,
    ) -> None:
        self.asked = [source for source in asked if not source.is_settings]
        self.settings = [source for source in asked if source.is_settings]
        self.hints = hints
        self.target = target
        self.files = files or Files()
        self._known: dict[str, Source | None] = {os.path.abspath(s.path): s for s in asked}
        self._finder = Finder(roots, self.files, self._known)
        self._followed = 0
        self.too_large: dict[str, str] = {}
        """The files that are not followed into because they are too large, or come when too much was read."""
        self._read_before = {} if decoded is None else decoded
        self.registering: dict[str, bool] = {}
        """The files that are known to register something when they are imported, or not to."""
        self.programs: list[Source] = []
        self.budget = Budget()
        self.interests: Mapping[str, Interest] = {}
        """How much the work is about files, by their paths; about all others, it is."""

    @classmethod
    def of(
        cls,
        sources: Sequence[Source],
        roots: Sequence[Folder] = (),
        hints: Hints = NO_HINTS,
        files: Files | None = None,
        target: Release | None = None,
        decoded: dict[str, Source | None] | None = None,
    ) -> Project:
        """A project of these sources; imports are looked up beside them, in their packages, and in ``roots``.

        ``decoded`` holds the other files that were read for an earlier version of the project, and gets
        those that are read for this one.
        """
        return cls(sources, roots, hints, files, target, decoded)

    def add_programs(self, sources: Iterable[Source]) -> None:
        """More sources from which runs may begin."""
        for source in sources:
            self.programs.append(source)
            self._known[self.path_of(source)] = source

    def path_of(self, source: Source) -> str:
        """Where a source is."""
        return os.path.abspath(source.path)

    def resolve(self, dotted: str, level: int, importer: Source) -> str | None:
        """The file (or the folder of a namespace package) that ``from <level dots>dotted import`` names."""
        return self._finder.resolve(dotted, level, importer.path)

    def resolve_below(self, package: str, name: str) -> str | None:
        """The module ``name`` of the package whose ``__init__.py`` or folder is ``package``."""
        return self._finder.resolve_below(package, name)

    def names_below(self, package: str) -> list[str]:
        """The modules and packages directly below a package."""
        folder = os.path.dirname(package) if package.endswith(".py") else package
        names = (name.removesuffix(".py") for name in self.files.names(folder))
        return [name for name in names if name.isidentifier() and not name.startswith("__")]

    def imported_by(self, source: Source) -> Iterator[str]:
        """The files that the import lines of a source lead to."""
        return self._finder.imported(
            source.text.encode("utf-8", "surrogatepass"), self.path_of(source)
        )

    def source(self, path: str) -> Source | None:
        """The parsed source at ``path``; None when it cannot be read or is not worth following into."""
        source = self.followed(path)
        return source if source is not None and is_parsed(source) else None

    def module_named(self, dotted: str, level: int, importer: Source) -> Source | None:
        """The source of the module that an import of ``importer`` names, where that is a file of the project."""
        path = self.resolve(dotted, level, importer)
        return self.source(path) if path and path.endswith(".py") else None

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
        if source is None:
            return None
        if self._followed + len(source.said) > MAX_FOLLOWED_TOTAL:
            most = MAX_FOLLOWED_TOTAL // 1_000_000
            self.too_large[path] = f"more than {most} MB of imported files to follow"
            return None
        self._followed += len(source.said)
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
            self.too_large[path] = f"larger than {MAX_FOLLOWED // 1000} kB"
            return None
        try:
            source = decode(raw, _shown(path))
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
