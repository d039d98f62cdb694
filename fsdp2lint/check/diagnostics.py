"""Findings as the user sees them: with their places resolved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp2lint.check.report import Report as Report
from fsdp2lint.check.report import Severity
from fsdp2lint.check.report import order as order
from fsdp2lint.system.plain import one_line

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Group, Rule
    from fsdp2lint.catalogue.findings import Finding, Fix
    from fsdp2lint.edits.changes import Span
    from fsdp2lint.model.events import Event
    from fsdp2lint.source.source import Range, Site, Source

Patch = dict["Source", tuple["Span", ...]]

SEVERITIES: dict[Group, Severity] = {
    "correctness": "error",
    "suspicious": "warning",
    "perf": "warning",
    "pedantic": "warning",
    "migration": "info",
}
"""A finding of severity ``info`` is a remark: it never makes a run fail."""


def shown(path: str) -> str:
    """A path as text that every encoder takes; bytes that are not UTF-8 are shown by their numbers."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class Place:
    """A span of a file."""

    source: Source
    range: Range

    @classmethod
    def of(cls, site: Site) -> Place:
        """The place of a site."""
        return cls(site.source, site.range)

    @property
    def path(self) -> str:
        """The file's name, safe to print."""
        return one_line(shown(self.source.path))

    @property
    def part(self) -> str:
        """The file's name, and the cell of a notebook."""
        cell = self.source.cell
        return self.path if cell is None else f"{self.path}:cell {cell}"

    @property
    def spot(self) -> tuple[str, int, Range]:
        """File, cell and span: what tells two places apart, and their order in the text."""
        return self.source.path, self.source.cell or 0, self.range

    @property
    def in_document(self) -> Place:
        """The same place where a reader of the document finds it that the program comes from."""
        document = self.source.document
        return self if document is None else Place(*document.place(self.source, self.range))

    @property
    def physical(self) -> int | None:
        """The line of the file for a part of a document; None where it is that of the range."""
        if self.source.cell is None:
            return None
        lines = self.source.physical
        return lines[min(self.range.line, len(lines)) - 1] if lines else 1

    @property
    def line(self) -> str:
        """The text of the line on which the span begins."""
        lines = self.source.lines
        return lines[self.range.line - 1] if self.range.line <= len(lines) else ""


@dataclass(frozen=True, slots=True)
class Reason:
    """Something that proves a finding: where, what, and through which calls the run gets there."""

    place: Place
    label: str
    calls: tuple[Place, ...] = ()
    order: int | None = None
    """When: larger is later. None for a place at which nothing runs."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A finding of ``rule``, ready to be shown."""

    rule: Rule
    message: str
    place: Place
    calls: tuple[Place, ...] = ()
    order: int | None = None
    because: tuple[Reason, ...] = ()
    fix: Fix | None = None
    note: str = ""
    patch: Patch = field(default_factory=dict)
    """What the fix replaces in each source; empty without a fix."""
    raised: bool = False
    """Whether a warning counts as an error."""

    @classmethod
    def of(cls, rule: Rule, finding: Finding) -> Diagnostic:
        """Resolve the places of what a rule said."""
        place, calls, order = _where(finding.at)
        because = []
        for at, label in finding.because:
            step, through, when = _where(at)
            because.append(Reason(step, label, through, when))
        return cls(rule, finding.message, place, calls, order, tuple(because), finding.fix)

    @property
    def severity(self) -> Severity:
        """How bad it is: the group of its rule says so."""
        severity = SEVERITIES[self.rule.group]
        return "error" if self.raised and severity == "warning" else severity

    @property
    def key(self) -> tuple[str, Range, str]:
        """What makes two findings the same one."""
        return (self.place.source.path, self.place.range, self.rule.code)

    def applicable(self, unsafe: bool) -> bool:
        """Whether ``--fix`` (with ``--unsafe-fixes`` when ``unsafe``) applies its fix."""
        applied = ("safe", "unsafe") if unsafe else ("safe",)
        return self.fix is not None and self.fix.safety in applied


def fingerprints(diagnostics: Sequence[Diagnostic]) -> list[str]:
    """A stable mark for each finding: it survives when other lines move.

    Made of code, file, the line's text without its indent, and a count among equals.
    """
    import hashlib  # costs more than all else that a run without findings imports from here

    seen: dict[tuple[str, str, str], int] = {}
    marks = []
    for diagnostic in diagnostics:
        key = (diagnostic.rule.code, diagnostic.place.path, diagnostic.place.line.strip())
        seen[key] = seen.get(key, 0) + 1
        raw = "\0".join((*key, str(seen[key])))
        marks.append(hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()[:32])
    return marks


def _where(at: Event | Site) -> tuple[Place, tuple[Place, ...], int | None]:
    from fsdp2lint.model.events import Event

    if isinstance(at, Event):
        return Place.of(at.at), tuple(Place.of(c) for c in at.calls if _is_call(c)), at.order
    return Place.of(at), (), None


def _is_call(site: Site) -> bool:
    """Not so for a definition: what no resolved code calls begins there."""
    return type(site.node).__name__ not in ("FunctionDef", "ClassDef")
