"""Findings under the name of their file."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from fsdp2lint.reporters._summary import ending

if TYPE_CHECKING:
    from fsdp2lint.diagnostics import Diagnostic, Report
    from fsdp2lint.reporters import View


def render(report: Report, view: View) -> str:
    """Each file with its findings, then the summary."""
    lines: list[str] = []
    for path, group in groupby(report.found, key=lambda d: d.place.path):
        found = list(group)
        places = [_place(d) for d in found]
        width = max(map(len, places))
        lines.append(f"{path}:")
        for place, diagnostic in zip(places, found, strict=True):
            star = " [*]" if diagnostic.applicable(view.unsafe) else ""
            lines.append(f"  {place:<{width}} {diagnostic.rule.code}{star} {diagnostic.message}")
        lines.append("")
    return "".join(line + "\n" for line in [*lines, *ending(report, view)])


def _place(diagnostic: Diagnostic) -> str:
    at, cell = diagnostic.place.range, diagnostic.place.source.cell
    return f"{'' if cell is None else f'cell {cell}:'}{at.line}:{at.column}"
