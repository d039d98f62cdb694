"""The outcome of a run.

Most runs of a hook find nothing to analyse: what they import is here, and it is little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fsdp2lint.check import coverage

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.check.coverage import Program
    from fsdp2lint.check.diagnostics import Diagnostic

Severity = Literal["error", "warning", "info"]

_GRAVEST_FIRST: tuple[Severity, ...] = ("error", "warning", "info")


class Report:
    """What a run found, in the order in which it is shown.

    ``analysed`` of the ``files`` were parsed: they use FSDP or import a file that does. A comment silences
    the ``suppressed`` findings, for the reason beside each; what was ``fixed`` is what was wrong before; the
    ``refused`` fixes were not made, with why; the baseline knows the ``known`` ones, so that they do not make
    the run fail, and is ``stale`` when an entry matches nothing any more. ``went_wrong`` when a part of the analysis raised, or a setting means nothing: the exit code is 2; ``profile`` holds the seconds that each rule
    took, by code. ``programs`` say what was followed of each. The ``unchecked`` paths were named and are of no kind that is read.
    What was found ``elsewhere`` lies in files that were not passed, which those that were passed import.
    No launch command names the settings in ``alone`` with a script: no script was analysed under them.
    """

    # written by hand: the machinery of dataclasses takes longer than the run of a hook without FSDP
    def __init__(
        self,
        found: list[Diagnostic] | None = None,
        suppressed: list[tuple[Diagnostic, str]] | None = None,
        *,
        files: int = 0,
        analysed: int = 0,
        rules: tuple[Rule, ...] = (),
        went_wrong: bool = False,
        fixed: Sequence[Diagnostic] = (),
        refused: Sequence[tuple[Diagnostic, str]] = (),
        known: Sequence[Diagnostic] = (),
        stale: bool = False,
        profile: Mapping[str, float] | None = None,
        unchecked: Sequence[str] = (),
        programs: Sequence[Program] = (),
        elsewhere: Sequence[Diagnostic] = (),
        alone: Sequence[str] = (),
    ) -> None:
        self.found = found or []
        self.suppressed = suppressed or []
        self.files = files
        self.analysed = analysed
        self.rules = rules
        self.went_wrong = went_wrong
        self.fixed = fixed
        self.refused = refused
        self.known = known
        self.stale = stale
        self.profile = profile or {}
        self.unchecked = unchecked
        self.programs = programs
        self.elsewhere = elsewhere
        self.alone = alone

    def but(self, **changes: Any) -> Report:
        """The same with some of its attributes changed."""
        other = Report()
        other.__dict__.update(self.__dict__, **changes)
        return other

    @property
    def failing(self) -> bool:
        """Whether a finding is left that should make the run fail."""
        return any(d.severity != "info" for d in self.found)


def order(diagnostic: Diagnostic) -> tuple[str, int, int, str, str]:
    """Path, line, column, code: the order of every report."""
    at = diagnostic.place.range
    return diagnostic.place.path, at.line, at.column, diagnostic.rule.code, diagnostic.message


def merged(reports: Iterable[Report]) -> Report:
    """Several reports as one; what two of them say is said once."""
    every = list(reports)
    found = {d.key: d for report in reversed(every) for d in reversed(report.found)}
    suppressed = {d.key: (d, why) for report in reversed(every) for d, why in report.suppressed}
    elsewhere = {d.key: d for report in reversed(every) for d in reversed(report.elsewhere)}
    profile: dict[str, float] = {}
    for report in every:
        for code, seconds in report.profile.items():
            profile[code] = profile.get(code, 0.0) + seconds
    rules = {rule.code: rule for report in every for rule in report.rules}
    return Report(
        found=sorted(found.values(), key=order),
        suppressed=sorted(suppressed.values(), key=lambda pair: order(pair[0])),
        files=sum(report.files for report in every),
        analysed=sum(report.analysed for report in every),
        rules=tuple(rules[code] for code in sorted(rules)),
        went_wrong=any(report.went_wrong for report in every),
        fixed=[d for report in every for d in report.fixed],
        refused=[pair for report in every for pair in report.refused],
        profile=profile,
        unchecked=[path for report in every for path in report.unchecked],
        alone=[path for report in every for path in report.alone],
        programs=coverage.merged(one for report in every for one in report.programs),
        elsewhere=sorted((d for key, d in elsewhere.items() if key not in found), key=order),
    )


def narrowed(report: Report, least: Severity) -> Report:
    """The report without the findings that are less grave than ``least``."""
    wanted = _GRAVEST_FIRST[: _GRAVEST_FIRST.index(least) + 1]
    return report.but(
        found=[d for d in report.found if d.severity in wanted],
        elsewhere=[d for d in report.elsewhere if d.severity in wanted],
    )


def strict(report: Report) -> Report:
    """The report with errors in place of warnings."""
    from dataclasses import replace

    return report.but(
        found=[replace(d, raised=True) for d in report.found],
        elsewhere=[replace(d, raised=True) for d in report.elsewhere],
    )
