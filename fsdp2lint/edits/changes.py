"""Changes of a text, how they nest, and the text that comes out.

A change replaces one stretch of a text. Inside the stretch there may be other changes: they are made
first, and the outer change asks for their outcome through its :class:`Inner`. Two changes conflict when
they overlap without nesting, when they replace the same stretch, or when the outer one leaves out a part
in which the inner one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import libcst as cst

    from fsdp2lint.edits.layout import Layout


class Conflict(Exception):
    """Two changes cannot both be made."""


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A replacement that is ready: ``text`` comes in place of the offsets ``start`` to ``end``."""

    start: int
    end: int
    text: str


@dataclass(slots=True, eq=False)
class Change:
    """A replacement whose text may depend on the changes inside it.

    ``level`` tells the outer of two changes that replace the same stretch: it is smaller there.
    ``absorbs`` is true when changes of the same fix inside may get lost: their statement goes.
    """

    start: int
    end: int
    text: str | Callable[[Inner], str]
    level: int = 0
    absorbs: bool = False
    owners: frozenset[int] = frozenset()
    """The fixes that want it."""
    inside: list[Change] = field(default_factory=list)

    def same(self, other: Change) -> bool:
        """Whether two fixes ask for the very same."""
        return (
            isinstance(self.text, str)
            and (self.start, self.end, self.text) == (other.start, other.end, other.text)
            and not self.owners & other.owners
        )


class Inner:
    """What a change sees of the text that it replaces, with the changes inside it already made."""

    def __init__(self, made: Made, change: Change) -> None:
        self._made = made
        self._change = change

    @property
    def text(self) -> str:
        """All of it."""
        return self.between(self._change.start, self._change.end)

    def __call__(self, node: cst.CSTNode) -> str:
        """The text of a node inside, safe to put elsewhere: its own parentheses come along."""
        text = self.between(*self._made.layout.whole(node))
        return f"({text})" if _needs_parentheses(node) else text

    def between(self, start: int, end: int) -> str:
        """The text of a stretch: inside, or elsewhere in the file for a change that moves text."""
        mine = self._change.start <= start and end <= self._change.end
        return self._made.between(start, end, self._change.inside if mine else self._made.outer)


class Made:
    """The outcome of some changes of one text.

    Raises:
        Conflict: they cannot all be made.
    """

    def __init__(self, layout: Layout, changes: Iterable[Change]) -> None:
        self.layout = layout
        self.seen: set[Change] = set()
        self.outer = _nest(changes)
        self._open: list[Change] = []
        self.spans = self._spans()
        _check_all_seen(self.outer, self.seen)

    def between(self, start: int, end: int, changes: Sequence[Change]) -> str:
        """The text from ``start`` to ``end`` with those of the changes, and inside them, that are there."""
        pieces: list[str] = []
        at = start
        changes = _deepest(changes, start, end)
        for change in changes:
            if not _inside(change, start, end):
                if change.start < end and start < change.end:
                    raise Conflict(_words(self.layout, change))
                continue
            pieces += (self.layout.text[at : change.start], self._text(change))
            at = change.end
        return "".join((*pieces, self.layout.text[at:end]))

    def _spans(self) -> tuple[Span, ...]:
        text = self.layout.text
        spans = (Span(c.start, c.end, self._text(c)) for c in self.outer)
        return tuple(s for s in spans if text[s.start : s.end] != s.text)

    def _text(self, change: Change) -> str:
        self.seen.add(change)
        if isinstance(change.text, str):
            return change.text
        if change in self._open:
            raise Conflict("text is moved into itself")
        self._open.append(change)
        text = change.text(Inner(self, change))
        self._open.pop()
        return text


def apply(text: str, spans: Iterable[Span]) -> str:
    """The text with the spans replaced; they must be in order and not overlap."""
    pieces: list[str] = []
    at = 0
    for span in spans:
        if span.start < at:
            raise Conflict(f"overlapping replacements at offset {span.start}")
        pieces += (text[at : span.start], span.text)
        at = span.end
    return "".join((*pieces, text[at:]))


def _deepest(changes: Sequence[Change], start: int, end: int) -> Sequence[Change]:
    """The changes inside the innermost one that takes this stretch away or rewrites more than it."""
    for change in changes:
        if change.start <= start and end <= change.end and change.start != change.end:
            if change.absorbs or (change.start, change.end) != (start, end):
                return _deepest(change.inside, start, end)
    return changes


def _inside(change: Change, start: int, end: int) -> bool:
    if change.start == change.end:
        return start < change.start < end
    return start <= change.start and change.end <= end


def _nest(changes: Iterable[Change]) -> list[Change]:
    """The outermost changes, in order, each with those inside it."""
    outermost: list[Change] = []
    around: list[Change] = []
    for change in sorted(
        _merged(changes), key=lambda c: (c.start, c.start != c.end, -c.end, c.level)
    ):
        change.inside.clear()
        while around and not _holds(around[-1], change):
            if change.start < around[-1].end:
                raise Conflict(f"two changes overlap at offset {change.start}")
            around.pop()
        (around[-1].inside if around else outermost).append(change)
        if change.start != change.end:
            around.append(change)
    return outermost


def _holds(outer: Change, inner: Change) -> bool:
    if (outer.start, outer.end) == (inner.start, inner.end):
        return outer.level < inner.level
    return _inside(inner, outer.start, outer.end)


def _merged(changes: Iterable[Change]) -> list[Change]:
    """The changes, those that several fixes ask for only once."""
    found: dict[tuple[int, int, str], Change] = {}
    kept: list[Change] = []
    for change in changes:
        if isinstance(change.text, str):
            first = found.setdefault((change.start, change.end, change.text), change)
            if first is not change and first.same(change):
                first.owners |= change.owners
                continue
        kept.append(change)
    return kept


def _check_all_seen(changes: Sequence[Change], seen: set[Change]) -> None:
    todo = [(change, inner) for change in changes for inner in change.inside]
    while todo:
        outer, inner = todo.pop()
        if inner not in seen and not (outer.absorbs and inner.owners <= outer.owners):
            raise Conflict(
                f"a change at offset {inner.start} is inside text that another change removes"
            )
        todo += [(inner if inner in seen else outer, deeper) for deeper in inner.inside]


def _words(layout: Layout, change: Change) -> str:
    line, column = layout.place(change.start)
    return f"a change at {line}:{column} overlaps text that another change moves"


def _needs_parentheses(node: cst.CSTNode) -> bool:
    """Whether a node without parentheses of its own can only be where it is."""
    kind = type(node).__name__
    if getattr(node, "lpar", ()):
        return False
    return kind in {"GeneratorExp", "NamedExpr", "Yield", "Tuple"}
