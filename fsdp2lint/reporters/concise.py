"""``path:line:col: CODE [*] message``, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp2lint.reporters._summary import ending

if TYPE_CHECKING:
    from fsdp2lint.diagnostics import Report
    from fsdp2lint.reporters import View


def render(report: Report, view: View) -> str:
    """One line for each finding, then the summary."""
    lines = []
    for diagnostic in report.found:
        at = diagnostic.place.range
        star = " [*]" if diagnostic.applicable(view.unsafe) else ""
        lines.append(
            f"{diagnostic.place.part}:{at.line}:{at.column}: "
            f"{diagnostic.rule.code}{star} {diagnostic.message}"
        )
    return "".join(line + "\n" for line in [*lines, *ending(report, view)])
