"""One run of ``check``: files in, a report out; with ``mended``, their new texts too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from fsdp2lint.check.context import Means
from fsdp2lint.check.report import Report, merged
from fsdp2lint.config.settings import Plugin, Settings
from fsdp2lint.source.prefilter import relevant, tells

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.check.analysis import Analysis
    from fsdp2lint.check.cache import Question
    from fsdp2lint.check.diagnostics import Diagnostic
    from fsdp2lint.check.units import Task, Unit
    from fsdp2lint.source.prefilter import Content
    from fsdp2lint.source.source import Source
    from fsdp2lint.system.files import Files

WORTH_A_PROCESS = 150_000
"""Bytes of relevant source below which starting processes costs more than it saves."""


COMMENT = b"fsdp2lint:"
"""What a file holds that silences something, or asks for it."""


class Batch(NamedTuple):
    """The files of one run: all that were ``passed``, and the relevant ones with their bytes.

    ``named`` are those that were passed by name, not found in a folder: what they import may not have
    been passed, so it is looked at for them. Below the ``covered`` folders (absolute) everything was passed;
    where that is None, nothing but the files of the batch is thought of.
    """

    passed: Sequence[str]
    relevant: Sequence[tuple[str, Content]]
    named: Sequence[str] = ()
    covered: Sequence[str] | None = None

    @classmethod
    def of_files(
        cls,
        files: Sequence[str],
        named: Sequence[str] = (),
        means: Means | None = None,
        hints: Sequence[str] = (),
    ) -> Batch:
        """Files on disk, or what stands for them; ``hints`` are functions that shard, by dotted name."""
        means = means or Means()
        return cls(files, list(means.sift(files, hints)), named)

    @classmethod
    def of_text(cls, raw: bytes, path: str, hints: Sequence[str] = ()) -> Batch:
        """The bytes of one file that would be at ``path``; its imports are read from disk."""
        return cls([path], [(path, raw)] if relevant(raw) or tells(raw, hints) else [], [path])


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
        task
        for task, report in zip(run.tasks, reports, strict=True)
        if any(d.applicable(unsafe) for d in report.found)
    ]
    if not fixable:
        return Mended(run.whole(reports))
    others = [r for t, r in zip(run.tasks, reports, strict=True) if t not in fixable]
    every = [_mended(run.analysis(task), unsafe, means.accept) for task in _joined(fixable)]
    return Mended(
        run.whole([*others, *(one.report for one in every)]),
        [pair for one in every for pair in one.changed],
        "".join(one.diff for one in every),
    )


class _Check:
    """The tasks of a batch, and their reports: out of the cache, from other processes, or from here."""

    def __init__(self, batch: Batch, settings: Settings, means: Means) -> None:
        self.batch = batch
        self.means = means
        self.tasks: Sequence[Task] = ()
        self.rules: tuple[Rule, ...] = ()
        self.unsure: frozenset[str] = frozenset()
        if not (batch.relevant or batch.named) and settings.default:
            return  # libcst and the rules cost more to import than thousands of files to sift
        from fsdp2lint.check.units import tasks
        from fsdp2lint.system.discover import project_roots

        self.roots = project_roots(batch.passed)
        self.unsure = self._unsure()
        aim = partial(means.aim, settings)
        self.tasks = list(tasks(self._planned(settings.hints.marks), batch.passed, aim))
        every = dict.fromkeys(task.settings for task in self.tasks)
        if every or not settings.default:
            known = self._known_rules(settings.plugins)
            chosen = {r.code: r for one in every or [settings] for r in one.chosen(known)}
            self.rules = tuple(chosen[code] for code in sorted(chosen))

    def report(self) -> Report:
        return self.whole(self.reports())

    def whole(self, reports: Iterable[Report]) -> Report:
        """The reports of the tasks as that of the batch."""
        one = merged(reports)
        one.files, one.rules = len(self.batch.passed), self.rules if self.tasks else ()
        return one

    def reports(self) -> list[Report]:
        """The report of each task."""
        kept = [self._from_cache(task) for task in self.tasks]
        missing = [t for t, report in zip(self.tasks, kept, strict=True) if report is None]
        made = iter(self._made(missing))
        return [next(made) if report is None else report for report in kept]

    def analysis(self, task: Task, files: Files | None = None) -> Analysis:
        """The analysis of one task, in this process."""
        from fsdp2lint.check.analysis import Analysis

        return Analysis(
            task.unit.asked,
            task.passed,
            task.settings,
            roots=self.roots,
            programs=task.unit.programs,
            skipped=task.unit.skipped,
            files=files or self.means.files(),
            profiling=self.means.profiling,
            progress=self.means.progress,
            unsure=self.unsure,
        )

    def result(self, tasks: Sequence[Task]) -> tuple[list[Report], dict[str, str]]:
        """The reports of tasks about one unit, which is followed once for all, and what they depend on."""
        from fsdp2lint.check.analysis import reports

        files = self.means.files()
        first = self.analysis(tasks[0], files)
        others = [first.under(task.settings, task.passed) for task in tasks[1:]]
        return reports([first, *others]), files.seen

    def _made(self, missing: Sequence[Task]) -> Iterator[Report]:
        results: Iterable[tuple[list[Report], dict[str, str]]]
        units = _by_unit(missing)
        if self.means.jobs > 1 and len(units) > 1 and _size(missing) > WORTH_A_PROCESS:
            from copy import copy

            from fsdp2lint.check.runner.processes import in_processes

            worker = copy(self)
            worker.means = self.means._replace(progress=None, keeping=None)
            results = in_processes(worker.result, units, self.means, self._rules_by_code())
        else:
            results = map(self.result, units)
        for tasks, (reports, seen) in zip(units, results, strict=True):
            for task, report in zip(tasks, reports, strict=True):
                self._keep(task, report, seen)
                yield report
            if self.means.progress is not None:
                self.means.progress(tasks[0].unit.asked[-1][0])

    def _unsure(self) -> frozenset[str]:
        """The files with comments of which nobody can say from here that they silence nothing."""
        batch = self.batch
        held = (p for p, raw in batch.relevant if isinstance(raw, bytes) and COMMENT in raw)
        commented = [os.path.abspath(path) for path in held]
        if batch.covered is None or not commented:
            return frozenset()
        from fsdp2lint.check.outside import unsure

        return unsure(commented, self._passed, batch.covered, self.means.files(digests=False))

    def _planned(self, hints: Sequence[str]) -> list[Unit]:
        """The units, out of the cache when no file and no import has changed."""
        from fsdp2lint.check.units import units

        batch = self.batch
        cache = self.means.cache if batch.relevant and not self.means.instead else None
        files = self.means.files(digests=cache is not None)
        if cache is None:
            return units(batch.passed, batch.relevant, batch.named, self.roots, files, hints)
        from fsdp2lint.check.stored import pack_units, unpacked_units

        more = (*batch.named, *batch.passed, "", *hints)
        question = self._question("plan", Settings(), batch.relevant, more)
        raw = cache.get(question, self._passed)
        kept = None if raw is None else unpacked_units(raw, batch.relevant, files.read)
        if kept is not None:
            return kept
        made = units(batch.passed, batch.relevant, batch.named, self.roots, files, hints)
        with suppress(UnicodeEncodeError):
            cache.put(question, files.seen, self._passed, pack_units(made))
        return made

    # -- the cache -------------------------------------------------------------------------------

    def _known_rules(self, plugins: tuple[Plugin, ...]) -> tuple[Rule, ...]:
        cache = self.means.cache
        kept = cache.rules(plugins) if cache is not None else None
        if kept is not None:
            return kept
        from fsdp2lint.catalogue import knowledge

        if cache is not None:
            cache.keep_rules(plugins, knowledge.rules(plugins))
        return knowledge.rules(plugins)

    def _rules_by_code(self) -> dict[str, Rule]:
        from fsdp2lint.catalogue.toolrules import TOOL_RULES

        return {rule.code: rule for rule in (*self.rules, *TOOL_RULES)}

    def _from_cache(self, task: Task) -> Report | None:
        cache = self.means.cache
        if cache is None or self._unkept(task):
            return None
        from fsdp2lint.check.stored import unpacked
        from fsdp2lint.source.documents.snippet import Snippet

        question, spelled = self._about(task), self._spelled(task)
        raw = cache.get(question, spelled)
        if raw is None:
            again = cache.get_moved(question, spelled, _contents(task))
            if again is None:
                return None
            raw, seen = again
            cache.put(question, seen, spelled, raw, _contents(task))
        own = {path: one.source for path, one in task.unit.asked if isinstance(one, Snippet)}
        return unpacked(raw, self._rules_by_code(), self.means.files().read, own)

    def _keep(self, task: Task, report: Report, seen: Mapping[str, str]) -> None:
        cache = self.means.cache
        if cache is None or report.went_wrong or self._unkept(task):
            return
        from fsdp2lint.check.stored import pack

        with suppress(UnicodeEncodeError):  # a file name that is no text
            cache.put(self._about(task), seen, self._spelled(task), pack(report), _contents(task))

    def _unkept(self, task: Task) -> bool:
        """What could not be read may be readable the next time."""
        keeping = self.means.keeping
        blind = bool(self.means.instead) and not (keeping and keeping.sees_instead)
        return blind or any(isinstance(c, OSError) for _, c in task.unit.asked)

    def _about(self, task: Task) -> Question:
        every = (*task.unit.asked, ("", b""), *task.unit.programs)
        whole = task.passed is self.batch.passed
        mine = () if whole else [path for path, _ in every if path in task.passed]
        unsure = [path for path, _ in task.unit.asked if os.path.abspath(path) in self.unsure]
        return self._question(
            "unit", task.settings, every, [*mine, "", *unsure, "", *task.unit.skipped]
        )

    def _question(
        self,
        kind: str,
        settings: Settings,
        contents: Iterable[tuple[str, Content]],
        more: Sequence[str] = (),
    ) -> Question:
        from fsdp2lint.check.cache import Question
        from fsdp2lint.source.documents.snippet import Snippet
        from fsdp2lint.system.files import digest

        every = [(path, raw) for path, raw in contents if isinstance(raw, bytes)]
        files = [(path, digest(raw)) for path, raw in every]
        lines = [str(raw.line) for _, raw in every if isinstance(raw, Snippet)]
        return Question(kind, settings, files, (*map(str, self.roots), "", *lines, "", *more))

    def _spelled(self, task: Task) -> dict[str, str]:
        passed = self._passed
        return passed if task.passed is self.batch.passed else _by_place(task.passed)

    @cached_property
    def _passed(self) -> dict[str, str]:
        return _by_place(self.batch.passed)


def _by_place(paths: Iterable[str]) -> dict[str, str]:
    return {os.path.abspath(path): path for path in paths}


def _contents(task: Task) -> dict[str, bytes]:
    """The bytes of the files of a task, by absolute path."""
    every = (*task.unit.asked, *task.unit.programs)
    return {os.path.abspath(path): raw for path, raw in every if isinstance(raw, bytes)}


def _by_unit(tasks: Iterable[Task]) -> list[list[Task]]:
    """The tasks in the order in which they came, those of one unit that can share its runs together."""
    found: list[list[Task]] = []
    for task in tasks:
        last = found[-1][0] if found else None
        if (
            last is not None
            and last.unit is task.unit
            and last.settings.hints == task.settings.hints
        ):
            found[-1].append(task)
        else:
            found.append([task])
    return found


def _size(tasks: Iterable[Task]) -> int:
    files = (raw for task in tasks for _, raw in task.unit.asked)
    return sum(len(raw) for raw in files if isinstance(raw, bytes))


def _joined(tasks: Sequence[Task]) -> Iterator[Task]:
    """The tasks of the same settings as one."""
    from fsdp2lint.check.units import Task, Unit

    for settings in dict.fromkeys(task.settings for task in tasks):
        same = [task for task in tasks if task.settings == settings]
        asked = sorted((one for task in same for one in task.unit.asked), key=lambda pair: pair[0])
        programs = tuple(one for task in same for one in task.unit.programs)
        passed = tuple(dict.fromkeys(path for task in same for path in task.passed))
        skipped = tuple(path for task in same for path in task.unit.skipped)
        yield Task(Unit(tuple(asked), programs, skipped), settings, passed)


def _mended(
    analysis: Analysis, unsafe: bool, accept: Callable[[Diagnostic], bool] | None
) -> Mended:
    from fsdp2lint.check import fixing

    last = first = analysis.report()
    others = [source for source in analysis.sources if not analysis.passed(source)]
    mine = [source for source in analysis.sources if source not in others]
    sources = [*mine, *_touched(first, analysis)]

    def lint(texts: Sequence[Source]) -> Sequence[Diagnostic]:
        nonlocal last
        if list(texts) != mine:
            last = analysis.report([*texts, *others])
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
