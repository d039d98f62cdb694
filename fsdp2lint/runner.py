"""One run of ``check``: files in, a report out; with ``mended``, their new texts too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from fsdp2lint.files import Files
from fsdp2lint.prefilter import relevant, sift
from fsdp2lint.report import Report, merged
from fsdp2lint.settings import Settings

if TYPE_CHECKING:
    from fsdp2lint.analysis import Analysis
    from fsdp2lint.cache import Cache, Question
    from fsdp2lint.declare import Rule
    from fsdp2lint.diagnostics import Diagnostic
    from fsdp2lint.plan import Unit
    from fsdp2lint.prefilter import Content
    from fsdp2lint.source import Source

WORTH_A_PROCESS = 150_000
"""Bytes of relevant source below which starting processes costs more than it saves."""

FEW = 64
"""Files up to which it costs less to read them than to ask the cache what they hold."""


class Batch(NamedTuple):
    """The files of one run: all that were ``passed``, and the relevant ones with their bytes.

    ``named`` are those that were passed by name, not found in a folder: what they import may not have
    been passed, so it is looked at for them.
    """

    passed: Sequence[str]
    relevant: Sequence[tuple[str, Content]]
    named: Sequence[str] = ()

    @classmethod
    def of_files(
        cls, files: Sequence[str], named: Sequence[str] = (), means: Means | None = None
    ) -> Batch:
        """Files on disk, or what stands for them."""
        means = means or Means()
        return cls(files, list(means.sift(files)), named)

    @classmethod
    def of_text(cls, raw: bytes, path: str) -> Batch:
        """The bytes of one file that would stand at ``path``; its imports are read from disk."""
        return cls([path], [(path, raw)] if relevant(raw) else [])


def _as_given(settings: Settings) -> Settings:
    return settings


class Keeping:
    """A cache that is opened when it is first needed: most runs of a hook never do."""

    sees_instead = False
    """Whether it knows what counts in place of the files on disk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._cache: Cache | None = None

    def open(self) -> Cache:
        """The cache."""
        if self._cache is None:
            from fsdp2lint.cache import Cache

            self._cache = Cache(self.folder)
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
    """Is told what is being analysed."""
    accept: Callable[[Diagnostic], bool] | None = None
    """Is asked about each fix before it is made."""
    aim: Callable[[Settings], Settings] = _as_given
    """Completes the settings, once there is something to analyse."""

    @property
    def cache(self) -> Cache | None:
        """The results of earlier runs."""
        return None if self.keeping is None else self.keeping.open()

    def files(self, *, digests: bool = True) -> Files:
        """The files as this run sees them, nothing asked of them yet."""
        return Files(self.instead, digests=digests)

    def sift(self, files: Sequence[str]) -> Iterator[tuple[str, Content]]:
        """The relevant files with their bytes; those that the cache knows to hold nothing are not read."""
        cache = self.cache if len(files) > FEW else None
        if cache is None and not self.instead:
            yield from sift(files)
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
            holds = relevant(raw)
            if cache is not None and known is None:
                cache.learn(full, raw, holds)
            if holds:
                yield path, raw


class Mended(NamedTuple):
    """What fixing came to: the report of what is left, and each changed file before and after."""

    report: Report
    changed: Sequence[tuple[Source, Source]] = ()
    diff: str = ""


def check(batch: Batch, settings: Settings | None = None, means: Means | None = None) -> Report:
    """What is wrong in the files of a batch.

    Raises:
        BadSetting: the settings name an unknown rule or no version.
    """
    settings, means = settings or Settings(), means or Means()
    return _Check(batch, settings, means).report()


def mend(
    batch: Batch,
    settings: Settings | None = None,
    means: Means | None = None,
    *,
    unsafe: bool = False,
) -> Mended:
    """Make the fixes of what is wrong, in memory; nothing is written.

    Raises:
        BadSetting: the settings name an unknown rule or no version.
    """
    settings, means = settings or Settings(), means or Means()
    run = _Check(batch, settings, means)
    reports = run.reports()
    fixable = [
        unit
        for unit, report in zip(run.units, reports, strict=True)
        if any(d.applicable(unsafe) for d in report.found)
    ]
    if not fixable:
        return Mended(run.whole(reports))
    others = [r for u, r in zip(run.units, reports, strict=True) if u not in fixable]
    mended = _mended(run.analysis(_joined(fixable)), unsafe, means.accept)
    return mended._replace(report=run.whole([*others, mended.report]))


class _Check:
    """The units of a batch, and their reports: out of the cache, from other processes, or from here."""

    def __init__(self, batch: Batch, settings: Settings, means: Means) -> None:
        self.batch = batch
        self.settings = settings
        self.means = means
        self.units: Sequence[Unit] = ()
        self.rules: tuple[Rule, ...] = ()
        if not (batch.relevant or batch.named) and settings.default:
            return  # libcst and the rules cost more to import than thousands of files to sift
        from fsdp2lint.discover import project_roots

        self.roots = project_roots(batch.passed)
        self.units = self._planned()
        if self.units:
            self.settings = means.aim(settings)
        if self.units or not settings.default:
            self.rules = self.settings.chosen(self._known_rules())

    def report(self) -> Report:
        return self.whole(self.reports())

    def whole(self, reports: Iterable[Report]) -> Report:
        """The reports of the units as that of the batch."""
        one = merged(reports)
        one.files, one.rules = len(self.batch.passed), self.rules if self.units else ()
        return one

    def reports(self) -> list[Report]:
        """The report of each unit."""
        kept = [self._from_cache(unit) for unit in self.units]
        missing = [u for u, report in zip(self.units, kept, strict=True) if report is None]
        made = iter(self._made(missing))
        return [next(made) if report is None else report for report in kept]

    def analysis(self, unit: Unit, files: Files | None = None) -> Analysis:
        """The analysis of one unit, in this process."""
        from fsdp2lint.analysis import Analysis

        return Analysis(
            unit.asked,
            self.batch.passed,
            self.settings,
            programs=unit.programs,
            files=files or self.means.files(),
            profiling=self.means.profiling,
            progress=self.means.progress,
        )

    def result(self, unit: Unit) -> tuple[Report, dict[str, str]]:
        """The report of one unit, and what it depends on."""
        files = self.means.files()
        return self.analysis(unit, files).report(), files.seen

    def _made(self, missing: Sequence[Unit]) -> Iterator[Report]:
        results: Iterable[tuple[Report, dict[str, str]]]
        if self.means.jobs > 1 and len(missing) > 1 and _size(missing) > WORTH_A_PROCESS:
            from copy import copy

            from fsdp2lint.processes import in_processes

            worker = copy(self)
            worker.means = self.means._replace(progress=None, keeping=None)
            results = in_processes(worker.result, missing, self.means, self._rules_by_code())
        else:
            results = map(self.result, missing)
        for unit, (report, seen) in zip(missing, results, strict=True):
            self._keep(unit, report, seen)
            if self.means.progress is not None:
                self.means.progress(unit.asked[-1][0])
            yield report

    def _planned(self) -> list[Unit]:
        """The units, out of the cache when no file and no import has changed."""
        from fsdp2lint.plan import units

        batch = self.batch
        cache = self.means.cache if batch.relevant and not self.means.instead else None
        files = self.means.files(digests=cache is not None)
        if cache is None:
            return units(batch.passed, batch.relevant, batch.named, self.roots, files)
        from fsdp2lint.stored import pack_units, unpacked_units

        question = self._question("plan", Settings(), batch.relevant, (*batch.named, *batch.passed))
        raw = cache.get(question, self._spelled)
        kept = None if raw is None else unpacked_units(raw, batch.relevant, files.read)
        if kept is not None:
            return kept
        made = units(batch.passed, batch.relevant, batch.named, self.roots, files)
        with suppress(UnicodeEncodeError):
            cache.put(question, files.seen, self._spelled, pack_units(made))
        return made

    # -- the cache -------------------------------------------------------------------------------

    def _known_rules(self) -> tuple[Rule, ...]:
        cache = self.means.cache
        kept = cache.rules() if cache is not None else None
        if kept is not None:
            return kept
        from fsdp2lint import knowledge

        if cache is not None:
            cache.keep_rules(knowledge.rules())
        return knowledge.rules()

    def _rules_by_code(self) -> dict[str, Rule]:
        from fsdp2lint.toolrules import TOOL_RULES

        return {rule.code: rule for rule in (*self.rules, *TOOL_RULES)}

    def _from_cache(self, unit: Unit) -> Report | None:
        cache = self.means.cache
        if cache is None or self._unkept(unit):
            return None
        from fsdp2lint.stored import unpacked

        raw = cache.get(self._about(unit), self._spelled)
        return (
            None if raw is None else unpacked(raw, self._rules_by_code(), self.means.files().read)
        )

    def _keep(self, unit: Unit, report: Report, seen: Mapping[str, str]) -> None:
        cache = self.means.cache
        if cache is None or report.crashed or self._unkept(unit):
            return
        from fsdp2lint.stored import pack

        with suppress(UnicodeEncodeError):  # a file name that is no text
            cache.put(self._about(unit), seen, self._spelled, pack(report))

    def _unkept(self, unit: Unit) -> bool:
        """What could not be read may be readable the next time."""
        keeping = self.means.keeping
        blind = bool(self.means.instead) and not (keeping and keeping.sees_instead)
        return blind or any(isinstance(c, OSError) for _, c in unit.asked)

    def _about(self, unit: Unit) -> Question:
        every = (*unit.asked, ("", b""), *unit.programs)
        return self._question("unit", self.settings, every)

    def _question(
        self,
        kind: str,
        settings: Settings,
        contents: Iterable[tuple[str, Content]],
        more: Sequence[str] = (),
    ) -> Question:
        from fsdp2lint.cache import Question
        from fsdp2lint.files import digest

        files = [(path, digest(raw)) for path, raw in contents if isinstance(raw, bytes)]
        return Question(kind, settings, files, (*map(str, self.roots), "", *more))

    @cached_property
    def _spelled(self) -> dict[str, str]:
        return {os.path.abspath(path): path for path in self.batch.passed}


def _size(units: Iterable[Unit]) -> int:
    return sum(len(raw) for unit in units for _, raw in unit.asked if isinstance(raw, bytes))


def _joined(units: Sequence[Unit]) -> Unit:
    from fsdp2lint.plan import Unit

    asked = sorted((one for unit in units for one in unit.asked), key=lambda pair: pair[0])
    return Unit(tuple(asked), tuple(one for unit in units for one in unit.programs))


def _mended(
    analysis: Analysis, unsafe: bool, accept: Callable[[Diagnostic], bool] | None
) -> Mended:
    from fsdp2lint import fixing

    last = first = analysis.report()
    sources = [*analysis.sources, *_touched(first, analysis)]

    def lint(texts: Sequence[Source]) -> Sequence[Diagnostic]:
        nonlocal last
        if list(texts) != analysis.sources:
            last = analysis.report(texts)
        if accept is None:
            return last.found
        return [d for d in last.found if not d.applicable(unsafe) or accept(d)]

    fixed = fixing.fix(sources, lint, unsafe=unsafe)
    last.fixed = fixed.made
    last.refused = [(dropped.finding, dropped.why) for dropped in fixed.dropped]
    return Mended(last, fixed.changed, fixed.diff())


def _touched(report: Report, analysis: Analysis) -> list[Source]:
    """The files that a fix changes besides the relevant ones: the user passed them, others import them."""
    edited = (e.source for d in report.found if d.fix for e in d.fix.edits)
    known = set(analysis.sources)
    return [s for s in dict.fromkeys(edited) if s not in known and analysis.passed(s)]
