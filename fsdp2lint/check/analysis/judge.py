"""What is left of the findings when the suppression comments have been heard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fsdp2lint.catalogue.findings import Fix
from fsdp2lint.catalogue.toolrules import ALWAYS_ON, UNKNOWN, UNUSED
from fsdp2lint.check.diagnostics import Diagnostic, order
from fsdp2lint.check.suppress import KINDS, Suppressions
from fsdp2lint.config.settings import precision, unknown
from fsdp2lint.edits.changes import Span
from fsdp2lint.edits.text import Splice

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.check.suppress import Directive, Word
    from fsdp2lint.source.source import Source


def judged(
    found: Iterable[Diagnostic],
    sources: Sequence[Source],
    ran: Sequence[Rule],
    known: Sequence[Rule],
    ignored: Callable[[str], Sequence[str]] = lambda path: (),
    sure: Sequence[Source] | None = None,
) -> tuple[list[Diagnostic], list[tuple[Diagnostic, str]]]:
    """The findings that are left, and those that a comment silences with its reason, both in order.

    ``sources`` are the files whose comments are judged too: unknown codes become findings, and unused ones
    in those of them that are ``sure`` (all, where none are named): every run that leads there was seen.
    ``ignored`` says what is not reported in the file at a path: no comment there is called unused for it.
    """
    everything = [d for d in found if not _is_ignored(d.rule, d.place.source, ignored)]
    sure = sources if sure is None else sure
    silencers = {s.path: Suppressions(s) for s in sources}
    for diagnostic in everything:
        source = diagnostic.place.source
        if source.path not in silencers and diagnostic.rule not in ALWAYS_ON:
            silencers[source.path] = Suppressions(source)
    left, silenced = _split(everything, silencers)
    # in this order: a comment that silences what is said about another one is not unused
    for about in (
        _unknown(silencers.values(), ran, known),
        _unused([silencers[s.path] for s in sure], ran, ignored),
    ):
        wanted = (d for d in about if not _is_ignored(d.rule, d.place.source, ignored))
        more_left, more_silenced = _split(wanted, silencers)
        left += more_left
        silenced += more_silenced
    return sorted(left, key=order), sorted(silenced, key=lambda pair: order(pair[0]))


def _is_ignored(rule: Rule, source: Source, ignored: Callable[[str], Sequence[str]]) -> bool:
    if rule in ALWAYS_ON:
        return False
    return any(precision(selector, rule) for selector in ignored(source.path))


def _split(
    found: Iterable[Diagnostic], silencers: dict[str, Suppressions]
) -> tuple[list[Diagnostic], list[tuple[Diagnostic, str]]]:
    left: list[Diagnostic] = []
    silenced: list[tuple[Diagnostic, str]] = []
    for diagnostic in found:
        silencer = silencers.get(diagnostic.place.source.path)
        if silencer is None or diagnostic.rule in ALWAYS_ON:
            left.append(diagnostic)
        elif (by := silencer.silences(diagnostic)) is not None:
            silenced.append((diagnostic, by.reason))
        else:
            left.append(diagnostic)
    return left, silenced


def _unknown(
    silencers: Iterable[Suppressions], ran: Sequence[Rule], known: Sequence[Rule]
) -> Iterator[Diagnostic]:
    if UNKNOWN not in ran:
        return
    for silencer in silencers:
        for directive, word in silencer.unknown(known):
            message = _what_is_unknown(directive, word, known)
            yield Diagnostic(UNKNOWN, message, silencer.place(directive, word))


def _what_is_unknown(directive: Directive, word: Word | None, known: Sequence[Rule]) -> str:
    if word is not None:
        names = [n for rule in known for n in (rule.code, rule.name)]
        return unknown("rule", word.text, names)
    if directive.kind not in KINDS:
        return unknown("suppression", directive.kind, KINDS)
    return f"`{directive.kind}` names no rule: write `{directive.kind}[FSDP203]`"


def _unused(
    silencers: Iterable[Suppressions],
    ran: Sequence[Rule],
    ignored: Callable[[str], Sequence[str]],
) -> Iterator[Diagnostic]:
    if UNUSED not in ran:
        return
    for silencer in silencers:
        source = silencer.source
        judgeable = [
            rule
            for rule in ran
            if rule not in (*ALWAYS_ON, UNUSED) and not _is_ignored(rule, source, ignored)
        ]
        for directive, word in silencer.unused(judgeable):
            message = f"`{directive.kind}[{word.text}]` silences nothing"
            start, end = silencer.removal(directive, word)
            edits = (Splice(silencer.source, start, end, ""),)
            yield Diagnostic(
                UNUSED,
                message,
                silencer.place(directive, word),
                fix=Fix("remove it", edits, "safe"),
                patch={silencer.source: (Span(start, end, ""),)},
            )
