"""JUnit's XML, which Jenkins and most other services read.

https://github.com/testmoapp/junitxml describes what they agree on; nothing is written that the schema of Jenkins'
plugin xUnit (``junit-10.xsd``) refuses, such as a file and a line as attributes of a case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from fsdp2lint.catalogue.toolrules import ALWAYS_ON
from fsdp2lint.system.plain import lines as lines_of

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic, Report
    from fsdp2lint.reporters import View

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""https://www.w3.org/TR/xml/#charsets"""


def render(report: Report, view: View) -> str:
    """A suite for each file with findings; one case that passes when there are none."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    lines.append(f'<testsuites name="fsdp2lint"{_counts(report.found)}>')
    if not report.found:
        lines.append('  <testsuite name="fsdp2lint" tests="1" failures="0" errors="0">')
        lines.append('    <testcase name="no findings" classname="fsdp2lint"/>')
        lines.append("  </testsuite>")
    for path, group in groupby(report.found, key=lambda d: d.place.path):
        lines += _suite(path, list(group))
    lines.append("</testsuites>")
    return "\n".join(lines) + "\n"


def _suite(path: str, found: Sequence[Diagnostic]) -> Iterator[str]:
    yield f"  <testsuite name={_attribute(path)}{_counts(found)}>"
    for diagnostic in found:
        yield from _case(diagnostic)
    yield "  </testsuite>"


def _case(diagnostic: Diagnostic) -> Iterator[str]:
    """A note passes and says what it has to say; what was not analysed is an error, not a failure."""
    at, rule = diagnostic.place.range, diagnostic.rule
    cell = diagnostic.place.source.cell
    inside = "" if cell is None else f"cell {cell}, "
    name = f"{rule.code} {rule.name} ({inside}line {at.line}, column {at.column})"
    where = f"{diagnostic.place.part}:{at.line}:{at.column}"
    yield f"    <testcase name={_attribute(name)} classname={_attribute(diagnostic.place.path)}>"
    text = _text(f"{where}: {rule.code} {diagnostic.message}")
    kind = _kind(diagnostic)
    if kind == "system-out":
        yield f"      <system-out>{text}</system-out>"
    else:
        said = f"message={_attribute(diagnostic.message)} type={_attribute(rule.code)}"
        yield f"      <{kind} {said}>{text}</{kind}>"
    yield "    </testcase>"


def _kind(diagnostic: Diagnostic) -> str:
    if diagnostic.rule in ALWAYS_ON:
        return "error"
    return "system-out" if diagnostic.severity == "info" else "failure"


def _counts(found: Sequence[Diagnostic]) -> str:
    kinds = [_kind(d) for d in found]
    failures, errors = kinds.count("failure"), kinds.count("error")
    return f' tests="{len(kinds) or 1}" failures="{failures}" errors="{errors}"'


def _text(text: str) -> str:
    return escape(lines_of(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)))


def _attribute(text: str) -> str:
    return quoteattr(
        lines_of(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)), {"\n": "&#10;", "\t": "&#9;"}
    )
