"""How many findings each rule has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic, Report
    from fsdp2lint.reporters import View


def statistics(report: Report, view: View) -> list[str]:
    """Count, code, whether ``--fix`` mends them, and name; the most frequent first."""
    by_rule: dict[str, list[Diagnostic]] = {}
    for diagnostic in report.found:
        by_rule.setdefault(diagnostic.rule.code, []).append(diagnostic)
    ordered = sorted(by_rule.items(), key=lambda item: (-len(item[1]), item[0]))
    width = max((len(str(len(found))) for _, found in ordered), default=1)
    lines = []
    for code, found in ordered:
        fixable = sum(d.applicable(view.unsafe) for d in found)
        star = "[*]" if fixable == len(found) else "[-]" if fixable else "[ ]"
        lines.append(f"{len(found):>{width}}  {code}  {star}  {found[0].rule.name}")
    return lines
