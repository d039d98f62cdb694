"""The edits of several fixes made together: each fix whole or not at all.

Two sets of replacements, one made after the other, as one set.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from fsdp2lint.edits.changes import Change, Made, Span, apply
from fsdp2lint.edits.import_lines import on_one_line
from fsdp2lint.edits.layout import NEWLINE, Layout
from fsdp2lint.edits.text import Edit
from fsdp2lint.source.source import Source, Unreadable

Fix = Sequence[tuple[int, Edit]]
"""The edits of one fix, each with the fix's number."""


@dataclass(frozen=True, slots=True)
class Left:
    """A fix that was not made: its ``index``, and whether it can be tried ``again`` on the new text."""

    index: int
    why: str
    again: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of some fixes: the replacements of each source that changes, and the fixes left out."""

    spans: dict[Source, tuple[Span, ...]]
    left: tuple[Left, ...]

    @property
    def texts(self) -> dict[Source, str]:
        """The new text of each source that changes."""
        return {source: apply(source.text, spans) for source, spans in self.spans.items()}


def resolve(edits: Iterable[Edit]) -> dict[Source, tuple[Span, ...]]:
    """The replacements that the edits of one fix come down to, for each source that changes.

    Raises:
        Conflict: the edits contradict each other.
        ValueError: an edit does not fit its source, or the source's tree does not give back its text.
    """
    return _resolve([(0, edit) for edit in edits])


def combine(fixes: Sequence[Sequence[Edit]]) -> Outcome:
    """Make all of the fixes that can be made together; of two that conflict, the first.

    A fix that conflicts with one before it is left for another round; one that contradicts itself,
    does not fit its source or raises is left for good.
    """
    owned = [[(index, edit) for edit in fix] for index, fix in enumerate(fixes)]
    left: list[Left] = []
    taken = _taken([], owned, left)
    try:
        spans = _resolve(taken)
    except ValueError:  # the new text does not parse: its user has to see it, untidied
        spans = _resolve(taken, tidy=False)
    return Outcome(spans, tuple(left))


def _taken(
    before: Sequence[tuple[int, Edit]], fixes: Sequence[Fix], left: list[Left]
) -> list[tuple[int, Edit]]:
    """The edits of ``before`` and of those of the fixes that go with them and with each other.

    Halves are tried when the whole does not go: conflicts are few among many fixes.
    """
    together = [*before, *(one for fix in fixes for one in fix)]
    try:
        _resolve(together, tidy=False)
    except Exception as error:  # whatever a fix's function raises, the others are made
        if len(fixes) > 1:
            middle = len(fixes) // 2
            return _taken(_taken(before, fixes[:middle], left), fixes[middle:], left)
        left += [Left(index, str(error), _goes(fixes[0])) for index, _ in fixes[0][:1]]
        return list(before)
    return together


def _goes(fix: Fix) -> bool:
    """Whether a fix can be made when it is alone."""
    try:
        _resolve(fix, tidy=False)
    except Exception:  # it is told as left, with what was raised
        return False
    return True


def _resolve(
    owned: Iterable[tuple[int, Edit]], tidy: bool = True
) -> dict[Source, tuple[Span, ...]]:
    by_source: dict[Source, list[tuple[int, Edit]]] = {}
    for index, edit in owned:
        by_source.setdefault(edit.source, []).append((index, edit))
    spans = {source: _of_source(source, edits, tidy) for source, edits in by_source.items()}
    return {source: found for source, found in spans.items() if found}


def _of_source(source: Source, owned: Sequence[tuple[int, Edit]], tidy: bool) -> tuple[Span, ...]:
    if not Layout.of(source).faithful:
        raise ValueError("the parser does not reproduce this file, so it is not changed")
    spans = _made(source, [(index, edit) for index, edit in owned if not edit.afterwards])
    spans = _without_final_newline(source.text, spans)
    late = [(index, edit) for index, edit in owned if edit.afterwards]
    if not late or not tidy:
        return spans
    new = source
    if spans:
        new = source.with_text(apply(source.text, spans))
    try:
        tidied = _made(new, [(index, edit.on(new)) for index, edit in late])
    except Unreadable as error:
        raise ValueError(f"the changed text does not parse: {error.message}") from error
    spans = compose(source.text, spans, tidied)
    return compose(source.text, spans, _joined(source, spans))


def _joined(source: Source, spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """The changes of the new text that put imports on one line which were on one, or are new."""
    text = apply(source.text, spans)
    if source.is_settings:
        return ()
    new = source.with_text(text)
    return _made(new, [(0, edit) for edit in on_one_line(source, new)])


def _without_final_newline(text: str, spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """The replacements such that a text without an end to its last line stays without one."""
    if not spans or text.endswith(("\n", "\r")):
        return spans
    new = apply(text, spans)
    bare = new.rstrip("\r\n")
    return compose(text, spans, [Span(len(bare), len(new), "")]) if bare != new else spans


def _made(source: Source, owned: Sequence[tuple[int, Edit]]) -> tuple[Span, ...]:
    groups: dict[Hashable, list[tuple[int, Edit]]] = {}
    for index, edit in owned:
        groups.setdefault(edit.group, []).append((index, edit))
    spans = Made(Layout.of(source), _owned_changes(groups.values())).spans
    newlines = set(NEWLINE.findall(source.text))
    if len(newlines) != 1 or newlines == {"\n"}:
        return spans
    newline = newlines.pop()  # what comes in gets the file's, too
    return tuple(Span(s.start, s.end, newline.join(NEWLINE.split(s.text))) for s in spans)


def _owned_changes(groups: Iterable[Sequence[tuple[int, Edit]]]) -> list[Change]:
    found: list[Change] = []
    for group in groups:
        owners = frozenset(index for index, _ in group)
        for change in group[0][1].changes([edit for _, edit in group]):
            change.owners = owners
            found.append(change)
    return found


def compose(text: str, first: Sequence[Span], second: Sequence[Span]) -> tuple[Span, ...]:
    """The replacements of ``text`` that do what ``first`` and then ``second``, of its outcome, do."""
    ours, theirs = _placed(first), [(s.start, s.end, s) for s in second]
    found: list[Span] = []
    shift = 0
    while ours or theirs:
        start, end, _ = min([*ours[:1], *theirs[:1]], key=lambda placed: placed[0])
        mine: list[Span] = []
        later: list[Span] = []
        before = shift
        while True:
            if ours and ours[0][0] <= end:
                _, stop, span = ours.pop(0)
                mine.append(span)
                shift += len(span.text) - (span.end - span.start)
            elif theirs and theirs[0][0] <= end:
                _, stop, span = theirs.pop(0)
                later.append(span)
            else:
                break
            end = max(end, stop)
        found.append(_cluster(text, mine, later, start, end, before, shift))
    return tuple(s for s in found if text[s.start : s.end] != s.text)


def _placed(spans: Sequence[Span]) -> list[tuple[int, int, Span]]:
    """Where the new texts of replacements are in the outcome."""
    placed: list[tuple[int, int, Span]] = []
    shift = 0
    for span in spans:
        start = span.start + shift
        placed.append((start, start + len(span.text), span))
        shift += len(span.text) - (span.end - span.start)
    return placed


def _cluster(
    text: str,
    mine: Sequence[Span],
    later: Sequence[Span],
    start: int,
    end: int,
    before: int,
    after: int,
) -> Span:
    """One replacement for a cluster that reaches from ``start`` to ``end`` of the outcome of the first."""
    old_start, old_end = start - before, end - after
    moved = [Span(s.start - old_start, s.end - old_start, s.text) for s in mine]
    middle = apply(text[old_start:old_end], moved)
    shifted = [Span(s.start - start, s.end - start, s.text) for s in later]
    return Span(old_start, old_end, apply(middle, shifted))
