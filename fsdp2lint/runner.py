"""One run of ``check``: files in, a report out; with ``mended``, their new texts too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp2lint.diagnostics import Report
from fsdp2lint.prefilter import relevant, sift
from fsdp2lint.settings import Settings

if TYPE_CHECKING:
    from fsdp2lint.analysis import Analysis
    from fsdp2lint.diagnostics import Diagnostic
    from fsdp2lint.prefilter import Content
    from fsdp2lint.source import Source


@dataclass(frozen=True, slots=True)
class Batch:
    """The files of one run: all that were ``passed``, and the relevant ones with their bytes."""

    passed: Sequence[str]
    relevant: Sequence[tuple[str, Content]]

    @classmethod
    def of_files(cls, files: Sequence[str]) -> Batch:
        """Files on disk."""
        return cls(files, list(sift(files)))

    @classmethod
    def of_text(cls, raw: bytes, path: str) -> Batch:
        """The bytes of one file that would stand at ``path``; its imports are read from disk."""
        return cls([path], [(path, raw)] if relevant(raw) else [])


@dataclass(frozen=True, slots=True)
class Mended:
    """What fixing came to: the report of what is left, and each changed file before and after."""

    report: Report
    changed: Sequence[tuple[Source, Source]] = ()
    diff: str = ""


def check(batch: Batch, settings: Settings | None = None) -> Report:
    """What is wrong in the files of a batch.

    Raises:
        BadSetting: the settings name an unknown rule or no version.
    """
    analysis = _analysis(batch, settings or Settings())
    return analysis.report() if analysis else Report(files=len(batch.passed))


def mend(batch: Batch, settings: Settings | None = None, *, unsafe: bool = False) -> Mended:
    """Make the fixes of what is wrong, in memory; nothing is written.

    Raises:
        BadSetting: the settings name an unknown rule or no version.
    """
    analysis = _analysis(batch, settings or Settings())
    if analysis is None:
        return Mended(Report(files=len(batch.passed)))
    from fsdp2lint import fixing

    last = first = analysis.report()
    sources = [*analysis.sources, *_touched(first, analysis)]

    def lint(texts: Sequence[Source]) -> Sequence[Diagnostic]:
        nonlocal last
        if list(texts) != analysis.sources:
            last = analysis.report(texts)
        return last.found

    fixed = fixing.fix(sources, lint, unsafe=unsafe)
    last.fixed = fixed.made
    last.refused = [(dropped.finding, dropped.why) for dropped in fixed.dropped]
    return Mended(last, fixed.changed, fixed.diff())


def _analysis(batch: Batch, settings: Settings) -> Analysis | None:
    if not batch.relevant and settings.default:
        return None
    # libcst and the rules cost more to import than thousands of files to sift
    from fsdp2lint.analysis import Analysis

    return Analysis(batch.relevant, batch.passed, settings)


def _touched(report: Report, analysis: Analysis) -> list[Source]:
    """The files that a fix changes besides the relevant ones: the user passed them, others import them."""
    edited = (e.source for d in report.found if d.fix for e in d.fix.edits)
    known = set(analysis.sources)
    return [s for s in dict.fromkeys(edited) if s not in known and analysis.passed(s)]
