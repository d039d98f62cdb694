"""Two sets of replacements, one made after the other, as one set."""

from __future__ import annotations

from collections.abc import Sequence

from fsdp2lint.edits.changes import Span, apply


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
        found.append(_joined(text, mine, later, start, end, before, shift))
    return tuple(s for s in found if text[s.start : s.end] != s.text)


def _placed(spans: Sequence[Span]) -> list[tuple[int, int, Span]]:
    """Where the new texts of replacements stand in the outcome."""
    placed: list[tuple[int, int, Span]] = []
    shift = 0
    for span in spans:
        start = span.start + shift
        placed.append((start, start + len(span.text), span))
        shift += len(span.text) - (span.end - span.start)
    return placed


def _joined(
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
