"""SARIF 2.1.0, for code scanning services and editors.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from fsdp2lint import __version__
from fsdp2lint.catalogue.toolrules import ALWAYS_ON
from fsdp2lint.check.diagnostics import fingerprints, shown
from fsdp2lint.reporters._places import from_top
from fsdp2lint.reporters._records import replacements
from fsdp2lint.reporters._story import steps_of_the_run

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.check.diagnostics import Diagnostic, Place, Report
    from fsdp2lint.reporters import View
    from fsdp2lint.source.source import Range

Json = dict[str, Any]

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def render(report: Report, view: View) -> str:
    """One run: the rules, their results (silenced ones too, marked so), and what could not be analysed."""
    known = {rule.code: n for n, rule in enumerate(report.rules)}
    every: list[tuple[Diagnostic, Json | None]] = [(d, None) for d in report.found]
    every += [(d, _suppression("inSource", reason)) for d, reason in report.suppressed]
    every += [(d, _suppression("external")) for d in report.known]
    marks = fingerprints([d for d, _ in every])
    results = [
        _result(diagnostic, known, mark, suppression)
        for (diagnostic, suppression), mark in zip(every, marks, strict=True)
        if diagnostic.rule not in ALWAYS_ON
    ]
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver(report.rules)},
                "columnKind": "unicodeCodePoints",
                "invocations": [
                    {
                        "executionSuccessful": not report.went_wrong,
                        "toolExecutionNotifications": list(_notifications(report, known)),
                    }
                ],
                "results": results,
            }
        ],
    }
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode() + "\n"


def _driver(rules: Sequence[Rule]) -> Json:
    return {
        "name": "fsdp2lint",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_descriptor(rule) for rule in rules],
    }


def _descriptor(rule: Rule) -> Json:
    from fsdp2lint.check.diagnostics import SEVERITIES

    page = rule.page.strip()
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.section("Why is this bad") or rule.summary},
        "help": {"text": page, "markdown": page},
        **({"helpUri": rule.link} if rule.link else {}),
        "defaultConfiguration": {"level": LEVELS[SEVERITIES[rule.group]]},
        "properties": {"tags": [rule.group]},
    }


def _suppression(kind: str, reason: str = "") -> Json:
    """How a finding is silenced: by a comment, or by the baseline, which is outside the source."""
    said: Json = {"kind": kind, "status": "accepted"}
    return {**said, "justification": reason} if reason else said


def _result(
    diagnostic: Diagnostic, known: dict[str, int], mark: str, suppression: Json | None
) -> Json:
    result: Json = {
        "ruleId": diagnostic.rule.code,
        "ruleIndex": known[diagnostic.rule.code],
        "level": LEVELS[diagnostic.severity],
        "message": {"text": diagnostic.message},
        "locations": [_location(diagnostic.place)],
        "partialFingerprints": {"fsdp2lint/v1": mark},
    }
    if diagnostic.because:
        result["relatedLocations"] = [
            _location(step.place, step.label, n) for n, step in enumerate(diagnostic.because)
        ]
        flow = [
            {"location": _location(place, text)} for place, text in steps_of_the_run(diagnostic)
        ]
        result["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    in_cells = any(source.cell is not None for source in diagnostic.patch)
    if diagnostic.fix is not None and diagnostic.patch and not in_cells:
        result["fixes"] = [_fix(diagnostic)]
    if suppression is not None:
        result["suppressions"] = [suppression]
    return result


def _notifications(report: Report, known: dict[str, int]) -> Iterator[Json]:
    for diagnostic in report.found:
        if diagnostic.rule in ALWAYS_ON:
            yield {
                "level": LEVELS[diagnostic.severity],
                "message": {"text": diagnostic.message},
                "locations": [_location(diagnostic.place)],
                "descriptor": {
                    "id": diagnostic.rule.code,
                    "index": known[diagnostic.rule.code],
                },
            }


def _location(place: Place, message: str = "", number: int | None = None) -> Json:
    location: Json = {
        "physicalLocation": {
            "artifactLocation": _artifact(place.path),
            "region": _physical(place),
        }
    }
    cell = place.source.cell
    if cell is not None:
        location["logicalLocations"] = [{"name": f"cell {cell}, line {place.range.line}"}]
    if message:
        location["message"] = {"text": message}
    if number is not None:
        location["id"] = number
    return location


def _fix(diagnostic: Diagnostic) -> Json:
    title = diagnostic.fix.title if diagnostic.fix else ""
    changes = [
        {
            "artifactLocation": _artifact(shown(source.path)),
            "replacements": [
                {"deletedRegion": _region(at), "insertedContent": {"text": text}}
                for _, at, text in group
            ],
        }
        for source, group in groupby(replacements(diagnostic.patch), key=lambda r: r[0])
    ]
    return {"description": {"text": title}, "artifactChanges": changes}


def _physical(place: Place) -> Json:
    """The region of the file: of a cell in a notebook's JSON only the line is known."""
    return _region(place.range) if place.physical is None else {"startLine": place.physical}


def _region(at: Range) -> Json:
    return {
        "startLine": at.line,
        "startColumn": at.column,
        "endLine": at.end_line,
        "endColumn": at.end_column,
    }


def _artifact(path: str) -> Json:
    """A path below the checkout or the current folder as the service wants it; another as an absolute URI."""
    relative = from_top(os.path.relpath(path), "GITHUB_WORKSPACE")
    if relative.startswith(os.pardir) or os.path.isabs(relative):
        return {"uri": "file://" + quote(os.path.abspath(path).replace(os.sep, "/"))}
    return {"uri": quote(relative), "uriBaseId": "%SRCROOT%"}
