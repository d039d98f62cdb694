"""What is wrong, the code that is, what proves it, and the fix: for people, in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp2lint.reporters._paint import shown
from fsdp2lint.reporters._summary import ending
from fsdp2lint.system.paint import Line

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Report
    from fsdp2lint.reporters import View


def render(report: Report, view: View) -> str:
    """Each finding with its source, and the summary."""
    lines: list[Line] = []
    if report.found:
        from fsdp2lint.reporters.full.finding import rendered

        lines += rendered(report.found)
    lines += [[(line, "" if n else "strong")] for n, line in enumerate(ending(report, view))]
    return shown(lines, view)
