"""What an editor offers to do about findings: fix one, fix all, silence one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsprotocol import types

from fsdp2lint.catalogue.toolrules import ALWAYS_ON
from fsdp2lint.check.add_ignores import silenced
from fsdp2lint.check.in_documents import Change, changes, patched
from fsdp2lint.server.places import Ruler

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic
    from fsdp2lint.server.said import Words

FIX_ALL = "source.fixAll.fsdp2lint"
KINDS = (types.CodeActionKind.QuickFix.value, FIX_ALL)


@dataclass(frozen=True)
class Offers:
    """Makes the actions; ``versions`` are those of the open documents, by address."""

    words: Words
    versions: dict[str, int | None]
    versioned: bool
    """Whether the client takes edits that name the version that they are for."""

    def of(self, one: Diagnostic, said: types.Diagnostic) -> Iterator[types.CodeAction]:
        """What can be done about a finding: its fix, unless that is only to be shown, and a comment."""
        if one.fix is not None and one.fix.safety != "shown" and one.patch:
            safe = one.fix.safety == "safe"
            yield types.CodeAction(
                title=one.fix.title if safe else f"{one.fix.title} (unsafe: {one.fix.note})",
                kind=types.CodeActionKind.QuickFix,
                diagnostics=[said],
                is_preferred=safe or None,
                edit=self.edit(patched(one.patch)),
            )
        if one.rule not in ALWAYS_ON:
            source = one.place.source
            yield types.CodeAction(
                title=f"Ignore {one.rule.code} here",
                kind=types.CodeActionKind.QuickFix,
                diagnostics=[said],
                edit=self.edit(changes(source, source.with_text(silenced(source, [one])))),
            )

    def edit(self, made: Iterable[Change]) -> types.WorkspaceEdit:
        """Replacements as one edit of the workspace."""
        by_uri: dict[str, list[types.TextEdit]] = {}
        for source, span in made:
            range_ = Ruler(source.text, self.words.units).span(span)
            by_uri.setdefault(self.words.uri(source), []).append(types.TextEdit(range_, span.text))
        if not self.versioned:
            return types.WorkspaceEdit(changes=by_uri)
        return types.WorkspaceEdit(
            document_changes=[
                types.TextDocumentEdit(
                    types.OptionalVersionedTextDocumentIdentifier(uri, self.versions.get(uri)),
                    edits,
                )
                for uri, edits in by_uri.items()
            ]
        )


def fix_all(uri: str) -> types.CodeAction:
    """The offer to fix a whole file: worked out when it is taken up."""
    return types.CodeAction("Fix all of fsdp2lint", kind=FIX_ALL, data={"uri": uri})


def wanted(kind: str, only: Sequence[str] | None) -> bool:
    """Whether a client that asks ``only`` for some kinds wants this one: a kind means those below it."""
    return only is None or any(kind == one or kind.startswith(f"{one}.") for one in only)
