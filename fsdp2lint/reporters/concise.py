"""``path:line:col: CODE [*] message``, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp2lint.reporters._paint import coded, shown
from fsdp2lint.reporters._summary import ending
from fsdp2lint.system.paint import Line

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Report
    from fsdp2lint.reporters import View


def render(report: Report, view: View) -> str:
    """One line for each finding, then the summary."""
    lines: list[Line] = []
    for diagnostic in report.found:
        at = diagnostic.place.range
        star = " [*]" if diagnostic.applicable(view.unsafe) else ""
        lines.append(
            [
                (diagnostic.place.part, "strong"),
                (f":{at.line}:{at.column}: ", "dim"),
                (diagnostic.rule.code, coded(diagnostic.rule, diagnostic.severity)),
                (star, "mark"),
                (f" {diagnostic.message}", ""),
            ]
        )
    return shown([*lines, *([(line, "")] for line in ending(report, view))], view)
