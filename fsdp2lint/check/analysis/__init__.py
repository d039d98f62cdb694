"""The part of a run that parses: project, traces, rules, suppressions."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.toolrules import CRASHED, TOOL_RULES, UNANALYSABLE
from fsdp2lint.check.analysis.followed import Followed
from fsdp2lint.check.analysis.judge import judged
from fsdp2lint.check.diagnostics import Diagnostic, Place, Report, shown
from fsdp2lint.edits.apply import resolve
from fsdp2lint.edits.changes import Conflict
from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.guards import forget_joins
from fsdp2lint.project.project import Project
from fsdp2lint.source.documents.snippet import Snippet
from fsdp2lint.source.prefilter import MAX_BYTES
from fsdp2lint.source.reading import decode
from fsdp2lint.source.source import NOTEBOOK, Range, Source, Unreadable
from fsdp2lint.system.collector import no_collector
from fsdp2lint.system.discover import is_test, project_roots
from fsdp2lint.system.files import Files
from fsdp2lint.system.frames import roomy

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.config.settings import Settings
    from fsdp2lint.model.trace import Trace
    from fsdp2lint.source.prefilter import Content

MOST_REMEMBERED = 2_000
"""So many guards may know how they compare with others before a rule asks: those before it have asked of other events."""


class Analysis:
    """What is analysed: the relevant files, under some settings; findings are about the ``passed`` ones.

    Into the ``unsure`` ones (absolute) runs lead that are not seen here. ``programs`` are files that are only run, because they lead to the others; the ``skipped`` ones would too and are too many. ``sources`` are the relevant
    files that parse; ``problems`` says why the others do not.

    Raises:
        BadSetting: the settings name an unknown rule or no version.
    """

    def __init__(
        self,
        relevant: Sequence[tuple[str, Content]],
        passed: Sequence[str],
        settings: Settings,
        *,
        roots: Sequence[str] | None = None,
        programs: Sequence[tuple[str, Content]] = (),
        skipped: Sequence[str] = (),
        files: Files | None = None,
        profiling: bool = False,
        progress: Callable[[str], None] | None = None,
        unsure: Collection[str] = (),
    ) -> None:
        self.settings = settings
        self.files = files or Files()
        self.profiling = profiling
        self.skipped = skipped
        self.progress = progress
        self.unsure = unsure
        self.rules = settings.chosen(knowledge.rules(settings.plugins))
        self.spelled = {os.path.abspath(path): path for path in passed}
        self.roots = project_roots(passed) if roots is None else roots
        self.problems: list[Diagnostic] = []
        with no_collector():
            self.sources = [s for path, raw in relevant if (s := self._source(path, raw))]
            self.programs = [s for path, raw in programs if (s := self._source(path, raw))]

    def report(self, sources: Sequence[Source] | None = None) -> Report:
        """What the rules say of the sources, or of later texts of them."""
        return reports([self], sources)[0]

    def under(self, settings: Settings, passed: Sequence[str]) -> Analysis:
        """The same files under other settings that tell the same of them; others of them were passed.

        Raises:
            BadSetting: the settings name an unknown rule or no version.
        """
        other = copy(self)
        other.settings = settings
        other.rules = settings.chosen(knowledge.rules())
        other.spelled = {os.path.abspath(path): path for path in passed}
        return other

    def passed(self, source: Source) -> bool:
        """Whether the user passed this file; its name becomes the one that the user wrote."""
        spelled = self.spelled.get(os.path.abspath(source.path))
        if spelled is not None:
            source.path = spelled
        return spelled is not None

    def _source(self, path: str, content: Content) -> Source | None:
        """The parsed source; None, and a problem, when it cannot be had."""
        source = Source(path, "")
        try:
            source = _decoded(path, content)
            source.tree  # noqa: B018  parsed here, so that what cannot be parsed is said here
        except Unreadable as problem:
            at = Range(problem.line, problem.column, problem.line, problem.column)
            self.problems.append(Diagnostic(UNANALYSABLE, problem.message, Place(source, at)))
            return None
        return source


@roomy
def reports(analyses: Sequence[Analysis], sources: Sequence[Source] | None = None) -> list[Report]:
    """What the rules say of the same sources under the settings of each; the runs are followed once for all."""
    about = analyses[0]
    given = about.sources if sources is None else sources
    paths = {source.path for source in given}  # a program that a fix changed is among them
    programs = [source for source in about.programs if source.path not in paths]
    with no_collector():
        hints, target = about.settings.hints, about.settings.target
        project = Project.of(given, about.roots, hints, about.files, target)
        project.add_programs(programs)
        runs = [_Run(analysis) for analysis in analyses]
        for trace in _traces(project, runs):
            for run in runs:
                run.ask_all(trace)
            del trace  # what it holds can go before the next one is made
        return [run.report([*given, *programs]) for run in runs]


def _traces(project: Project, runs: Sequence[_Run]) -> Iterator[Trace]:
    walk = iter(traces(project, passing=True))
    while True:
        try:
            trace = next(walk, None)
        except Exception as error:
            for run in runs:
                run.crash("the analysis", error, project.asked[0])
            return
        if trace is None:
            return
        yield trace
        del trace


class _Run:
    """What one round of the rules gathers on its way."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.problems = [d for d in analysis.problems if analysis.passed(d.place.source)]
        self.found: dict[object, Diagnostic] = {d.key: d for d in self.problems}
        self.elsewhere: dict[object, Diagnostic] = {}
        self.crashed: set[str] = set()
        self.broken = False
        self.followed = Followed(analysis.skipped)
        self.profile: dict[str, float] = {}
        self.asking = [rule for rule in analysis.rules if rule not in TOOL_RULES]
        self.target = analysis.settings.target

    def ask_all(self, trace: Trace) -> None:
        """Ask every rule what it says of a trace, for the torch release of these settings."""
        if trace.target != self.target:
            trace.aim(self.target)
        trace.limits = self.analysis.settings.limits
        if self.analysis.progress is not None:
            self.analysis.progress(shown(trace.source.path))
        for rule in self.asking:
            self._ask(rule, trace)
            forget_joins(MOST_REMEMBERED)
        self._look_at(trace)

    def _ask(self, rule: Rule, trace: Trace) -> None:
        """What a rule says of a trace; a rule that raises says it once and never again in this run."""
        if rule.code in self.crashed:
            return
        started = perf_counter() if self.analysis.profiling else 0.0
        try:
            for finding in rule.findings(trace):
                self._add(self._with_patch(Diagnostic.of(rule, finding), trace.source))
        except Exception as error:
            self.crashed.add(rule.code)
            self.crash(f"the rule {rule.code} ({rule.name})", error, trace.source)
        if self.analysis.profiling:
            spent = perf_counter() - started
            self.profile[rule.code] = self.profile.get(rule.code, 0.0) + spent

    def _look_at(self, trace: Trace) -> None:
        """Note what was followed of the program."""
        if trace.settings is not None:
            return
        try:
            self.followed.add(trace)
        except Exception as error:
            self.crash("the account of what was followed", error, trace.source)

    def _with_patch(self, diagnostic: Diagnostic, asked: Source) -> Diagnostic:
        """The finding with what its fix replaces; without the fix when this file cannot be changed.

        A fix that raises is an error of its rule: the finding stays, and the error is one more.
        """
        if diagnostic.fix is None:
            return diagnostic
        try:
            return self._allowed(replace(diagnostic, patch=resolve(diagnostic.fix.edits)))
        except (Conflict, ValueError) as problem:
            return replace(diagnostic, fix=None, note=f"it has no fix here: {problem}")
        except Exception as error:
            rule = diagnostic.rule
            self.crash(f"a fix of the rule {rule.code} ({rule.name})", error, asked)
            return replace(diagnostic, fix=None)

    def _allowed(self, diagnostic: Diagnostic) -> Diagnostic:
        """The finding with a fix that is only shown where the settings say so."""
        fix = diagnostic.fix
        if fix is None or self.analysis.settings.may_fix(diagnostic.rule):
            return diagnostic
        return replace(diagnostic, fix=replace(fix, safety="shown", note="the rule is `unfixable`"))

    def _add(self, diagnostic: Diagnostic) -> None:
        if diagnostic.rule.group == "perf" and is_test(diagnostic.place.path):
            return  # what runs for a moment and is to be read need not be fast
        passed = self.analysis.passed(diagnostic.place.source)
        (self.found if passed else self.elsewhere).setdefault(diagnostic.key, diagnostic)

    def crash(self, what: str, error: Exception, source: Source) -> None:
        """Note that a part of the tool failed on a file."""
        self.broken = True
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(last.filename)}:{last.lineno}"
        message = f"{what} failed on this file: {type(error).__name__}: {error} ({where})"
        diagnostic = Diagnostic(CRASHED, message, Place(source, Range(1, 1, 1, 1)))
        self.found.setdefault((diagnostic.key, what), diagnostic)

    def report(self, sources: Sequence[Source]) -> Report:
        """What was found in all traces, and what comments silence of it."""
        ran = [r for r in self.analysis.rules if r.code not in self.crashed]
        known = (*knowledge.rules(self.analysis.settings.plugins), *TOOL_RULES)
        ignored = self.analysis.settings.ignored_in
        own = [source for source in sources if self.analysis.passed(source)]
        sure = [one for one in own if os.path.abspath(one.path) not in self.analysis.unsure]
        found, suppressed = judged(self.found.values(), own, ran, known, ignored, sure)
        elsewhere, _ = judged(self.elsewhere.values(), (), (), known, ignored)
        return Report(
            found=[self._allowed(one) for one in found],  # the tool's own rules have fixes too
            suppressed=suppressed,
            files=len(self.analysis.spelled),
            analysed=len(own) + len(self.problems),
            rules=tuple(self.analysis.rules),
            went_wrong=self.broken,
            profile=self.profile,
            programs=self.followed.programs(),
            elsewhere=elsewhere,
        )


def _decoded(path: str, content: Content) -> Source:
    if isinstance(content, OSError):
        raise Unreadable(f"cannot read the file: {content.strerror or content}")
    source = None
    size = len(content)
    if path.endswith(NOTEBOOK):
        source = decode(content, path)
        size = len(source.text)  # most of a notebook is what its cells have printed
    if size > MAX_BYTES:
        most = MAX_BYTES / 1e6
        raise Unreadable(
            f"too large to be analysed: {size / 1e6:.1f} MB, the limit is {most:.0f} MB"
        )
    if isinstance(content, Snippet):
        return content.source
    return source or decode(content, path)
