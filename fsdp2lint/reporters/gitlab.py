"""A Code Quality report for GitLab.

https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fsdp2lint.check.diagnostics import fingerprints
from fsdp2lint.reporters._places import from_top

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic, Report
    from fsdp2lint.reporters import View

SEVERITIES = {"error": "major", "warning": "minor", "info": "info"}


def render(report: Report, view: View) -> str:
    """One JSON list; paths are relative to ``CI_PROJECT_DIR``, where GitLab's runner sets it."""
    marks = fingerprints(report.found)
    issues = [_issue(d, mark) for d, mark in zip(report.found, marks, strict=True)]
    return msgspec.json.format(msgspec.json.encode(issues), indent=2).decode() + "\n"


def _issue(diagnostic: Diagnostic, mark: str) -> dict[str, Any]:
    at, physical = diagnostic.place.range, diagnostic.place.physical
    begin = {"line": at.line, "column": at.column}
    end = {"line": at.end_line, "column": at.end_column}
    message = diagnostic.message
    if physical is not None:  # the services show the notebook's JSON
        begin, end = {"line": physical}, {"line": physical}
        message = f"cell {diagnostic.place.source.cell}, line {at.line}: {message}"
    return {
        "check_name": f"{diagnostic.rule.code} {diagnostic.rule.name}",
        "description": message,
        "severity": SEVERITIES[diagnostic.severity],
        "fingerprint": mark,
        "location": {
            "path": from_top(diagnostic.place.path, "CI_PROJECT_DIR"),
            "positions": {"begin": begin, "end": end},
        },
    }
