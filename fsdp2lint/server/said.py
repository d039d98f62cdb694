"""Findings in the words of the protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsprotocol import types

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.toolrules import TOOL_RULES, UNUSED
from fsdp2lint.server.places import Ruler, Units

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.check.diagnostics import Diagnostic, Place
    from fsdp2lint.source.source import Source

SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "info": types.DiagnosticSeverity.Information,
}
_CODE = re.compile(r"FSDP\d{3}")


@dataclass(frozen=True)
class Words:
    """How this client wants to be spoken to."""

    uri: Callable[[Source], str]
    """The address of a file, or of a cell of a notebook."""
    units: Units
    related: bool
    """Whether it shows the places that prove a finding."""
    markdown: bool

    def diagnostic(self, one: Diagnostic) -> types.Diagnostic:
        """A finding at the place that a reader of the document sees."""
        place = one.place.in_document
        return types.Diagnostic(
            range=self.range(place),
            message=one.message,
            severity=SEVERITIES[one.severity],
            code=one.rule.code,
            code_description=types.CodeDescription(one.rule.link) if one.rule.link else None,
            source="fsdp2lint",
            tags=[types.DiagnosticTag.Unnecessary] if one.rule is UNUSED else None,
            related_information=list(self._related(one)) if self.related else None,
        )

    def range(self, place: Place) -> types.Range:
        """Where a place is for the client."""
        return Ruler(place.source.text, self.units).range(place.range)

    def page(self, rules: Sequence[Rule]) -> types.MarkupContent:
        """The pages of some rules."""
        kind = types.MarkupKind.Markdown if self.markdown else types.MarkupKind.PlainText
        pages = (f"# {rule.code} {rule.name}\n\n{rule.page.strip()}\n" for rule in rules)
        return types.MarkupContent(kind, "\n---\n\n".join(pages))

    def _related(self, one: Diagnostic) -> Iterator[types.DiagnosticRelatedInformation]:
        for step in one.because:
            place = step.place.in_document
            location = types.Location(self.uri(place.source), self.range(place))
            yield types.DiagnosticRelatedInformation(location, step.label)


def explained(found: Sequence[Rule], line: str, column: int) -> list[Rule]:
    """The rules of which a page is wanted: those of findings here, or the one whose code is written here."""
    if found:
        return list({rule.code: rule for rule in found}.values())
    known = {rule.code: rule for rule in (*knowledge.rules(), *TOOL_RULES)}
    for match in _CODE.finditer(line):
        if match.start() < column <= match.end() + 1 and match[0] in known:
            return [known[match[0]]]
    return []
