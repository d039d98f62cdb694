"""Findings under the name of their file."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from fsdp2lint.reporters._paint import coded, shown
from fsdp2lint.reporters._summary import ending
from fsdp2lint.system.paint import Line

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic, Report
    from fsdp2lint.reporters import View


def render(report: Report, view: View) -> str:
    """Each file with its findings, then the summary."""
    lines: list[Line] = []
    for path, group in groupby(report.found, key=lambda d: d.place.path):
        found = list(group)
        places = [_place(d) for d in found]
        width = max(map(len, places))
        lines.append([(path, "strong"), (":", "")])
        for place, diagnostic in zip(places, found, strict=True):
            star = " [*]" if diagnostic.applicable(view.unsafe) else ""
            lines.append(
                [
                    (f"  {place:<{width}} ", "dim"),
                    (diagnostic.rule.code, coded(diagnostic.rule, diagnostic.severity)),
                    (star, "mark"),
                    (f" {diagnostic.message}", ""),
                ]
            )
        lines.append([])
    return shown([*lines, *([(line, "")] for line in ending(report, view))], view)


def _place(diagnostic: Diagnostic) -> str:
    at, cell = diagnostic.place.range, diagnostic.place.source.cell
    return f"{'' if cell is None else f'cell {cell}:'}{at.line}:{at.column}"
