"""Annotations of a GitHub workflow run.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions; paths are relative to
``GITHUB_WORKSPACE``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp2lint.reporters._places import from_top
from fsdp2lint.reporters._summary import summary
from fsdp2lint.system.plain import lines as lines_of
from fsdp2lint.system.plain import one_line

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic, Report
    from fsdp2lint.reporters import View

COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def render(report: Report, view: View) -> str:
    """One command a finding, the gravest first: GitHub shows ten of each kind and step."""
    graves = list(COMMANDS)
    ordered = sorted(report.found, key=lambda d: graves.index(d.severity))
    return "".join(_command(d) + "\n" for d in ordered)


def step_summary(report: Report, view: View) -> str:
    """The whole report as a table in Markdown, for the page of the workflow run."""
    lines = [f"### fsdp2lint: {' '.join(summary(report, view))}", ""]
    if report.found:
        lines += ["| place | rule | finding |", "|---|---|---|"]
    for diagnostic in report.found:
        at = f"{diagnostic.place.part}:{diagnostic.place.range.line}"
        what = one_line(diagnostic.message).replace("|", "\\|")
        lines.append(f"| {at} | {diagnostic.rule.code} {diagnostic.rule.name} | {what} |")
    return "\n".join(lines) + "\n"


def _command(diagnostic: Diagnostic) -> str:
    at = diagnostic.place.range
    path, code = from_top(diagnostic.place.path, "GITHUB_WORKSPACE"), diagnostic.rule.code
    physical = diagnostic.place.physical
    properties = {"title": f"fsdp2lint ({code})", "file": path, "line": physical or at.line}
    if physical is not None:
        properties["endLine"] = physical  # a column of the cell is none of the notebook's JSON
    elif at.line == at.end_line:
        # GitHub refuses columns for an annotation of several lines
        properties |= {"col": at.column, "endLine": at.end_line, "endColumn": at.end_column}
    else:
        properties["endLine"] = at.end_line
    said = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    message = (
        f"{diagnostic.place.part}:{at.line}:{at.column}: {code} {lines_of(diagnostic.message)}"
    )
    return f"::{COMMANDS[diagnostic.severity]} {said}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
