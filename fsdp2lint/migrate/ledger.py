"""The account of a migration: what became of every occurrence of FSDP1 that was there at the beginning."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal

from fsdp2lint.ask.inventory import Occurrence
from fsdp2lint.edits.changes import Span, apply
from fsdp2lint.edits.layout import Layout
from fsdp2lint.edits.steps import Fate, Respelling
from fsdp2lint.source.source import Range, Source

if TYPE_CHECKING:
    import libcst as cst

Status = Fate | Literal["open"]
"""``open``: nobody has accounted for it."""

Place = tuple[str, int, int]
FATES: tuple[Status, ...] = ("preserved", "changed", "dropped", "manual", "open")

_TOKEN = re.compile(r"\w+|[^\w\s]|\s+")


@dataclass(frozen=True, slots=True)
class Todo:
    """A comment by which an earlier run left something to a person, and which is still in the text."""

    path: str
    line: int
    cell: int | None
    text: str

    @property
    def place(self) -> str:
        """The line, behind the cell of a notebook."""
        return str(self.line) if self.cell is None else f"cell {self.cell}:{self.line}"


@dataclass(slots=True)
class Entry:
    """One occurrence with what became of it; ``at`` is its offset in the text as it is now (None: gone)."""

    path: str
    line: int
    column: int
    kind: str
    symbol: str
    code: str
    at: int | None
    fate: Status = "open"
    why: str = ""
    todo: str = ""
    by: str = ""
    """The codemod that accounted for it."""
    skeleton: str = ""
    """Code to begin with, where something is left for manual migration."""
    cell: int | None = None
    """The cell of a notebook; line and column count in it."""
    weight: int = field(default=1 << 60)
    """How large a node the account was given for: a closer one counts more."""

    @property
    def place(self) -> str:
        """The line, behind the cell of a notebook."""
        return str(self.line) if self.cell is None else f"cell {self.cell}:{self.line}"

    @property
    def start(self) -> Place:
        """The file, line and column before the migration."""
        return self.path, self.line, self.column

    @property
    def note(self) -> str:
        """The reason and, behind it, what a person has to do, unless that says the reason itself."""
        if not self.todo:
            return self.why
        return f"to do: {self.todo}" if self.why in self.todo else f"{self.why}; to do: {self.todo}"

    def account(
        self, fate: Fate, why: str, by: str, weight: int, todo: str = "", skeleton: str = ""
    ) -> None:
        """Write down what became of it, unless something closer to it has been said.

        A codemod that asks once more finds its own change right as it is: it stays a change.
        """
        repeats = self.by == by and weight >= self.weight
        if fate == "preserved" and repeats and self.fate in ("changed", "dropped"):
            return
        if self.fate == "open" or weight <= self.weight or self.fate == "manual":
            self.fate, self.why, self.by, self.weight, self.todo = fate, why, by, weight, todo
            self.skeleton = skeleton


class Ledger:
    """The entries of a migration, in the order of the text as it was."""

    def __init__(self, occurrences: Iterable[Occurrence]) -> None:
        self.entries = [_entry(one) for one in occurrences]
        self._history: dict[str, list[tuple[Source, str, list[Span]]]] = {}
        """For each path the texts that it had, each with what came next and the way back from that."""

    @property
    def sums(self) -> dict[Status, int]:
        """How many entries ended how."""
        counts = Counter(entry.fate for entry in self.entries)
        return {fate: counts[fate] for fate in FATES}

    @property
    def complete(self) -> bool:
        """Whether everything is accounted for."""
        return all(entry.fate != "open" for entry in self.entries)

    @property
    def manual(self) -> list[Entry]:
        """What is left for a person."""
        return [entry for entry in self.entries if entry.fate == "manual"]

    def inside(self, source: Source, start: int, end: int) -> list[Entry]:
        """The entries whose occurrence now is between two offsets of a source."""
        return [
            entry
            for entry in self.entries
            if entry.path == source.path and entry.at is not None and start <= entry.at < end
        ]

    def enter(self, source: Source, node: cst.CSTNode) -> Entry:
        """A new entry for code that names nothing of FSDP1 and means something else after a migration."""
        start = Layout.of(source).span(node)[0]
        line, column, cell = self.place(source, node)
        said = source.code(node)
        symbol = said if len(said) <= 40 else f"{said[:39]}…"
        entry = Entry(source.path, line, column, "code", symbol, "", start, cell=cell)
        self.entries.append(entry)
        return entry

    def place(self, source: Source, node: cst.CSTNode) -> tuple[int, int, int | None]:
        """The line, column and cell that a node has, or what it came from had, before the migration."""
        start = Layout.of(source).span(node)[0]
        for old, new, back in reversed(self._history.get(source.path, [])):
            found = moved(new, old.text, back, start)
            if found is None:
                found = next(b for b in back if b.start <= start < b.end).start
                found = _shifted(back, found)
            source, start = old, found
        return place(source, start)

    def follow(self, source: Source, spans: Sequence[Span]) -> None:
        """A source gets a new text: know where each occurrence is in it, or that it is gone."""
        new = apply(source.text, spans)
        back = list(_inverse(source.text, spans))
        self._history.setdefault(source.path, []).append((source.bare(), new, back))
        for entry in self.entries:
            if entry.path == source.path and entry.at is not None:
                entry.at = moved(source.text, new, spans, entry.at)

    def add(self, words: Iterable[Respelling], by: str) -> None:
        """Enter changes of files that are no Python; what is left to a person only once."""
        for word in words:
            line, column = Layout.of(word.source).place(word.start)
            fate: Fate = "manual" if word.todo else word.fate
            entry = Entry(word.source.path, line, column, word.kind, word.what, "", None)
            entry.account(fate, word.why, by, 0, word.todo)
            if not any(
                (e.path, e.line, e.symbol) == (entry.path, line, word.what) for e in self.entries
            ):
                self.entries.append(entry)

    def missing(self, occurrences: Iterable[Occurrence]) -> list[Entry]:
        """Entries for what is in the text at the end and in no entry: a run shows it only now.

        Where an entry of the same symbol has lost sight of its occurrence, it is that one: it was moved.
        Names that were not there at the beginning are what the codemods wrote, and no occurrence. A string
        that named two things of FSDP1 may still name one.
        """
        here = [e for e in self.entries if e.at is not None]
        seen = {(e.path, e.at) for e in here if e.kind != "string"}
        words = {(e.path, e.at, e.symbol) for e in here if e.kind == "string"}
        new: list[Entry] = []
        for one in occurrences:
            place = one.source.path, one.start
            if place in seen or (*place, one.symbol) in words:
                continue
            lost = next((e for e in self.entries if _lost(e, one)), None)
            if lost is not None:
                lost.at = one.start
            elif one.kind in ("method", "attribute", "string"):
                entry = _entry(one)
                entry.line, entry.column, entry.cell = self.place(one.source, one.node)
                new.append(entry)
        return new


def _inverse(old: str, spans: Sequence[Span]) -> Iterator[Span]:
    """The replacements that make the old text of the new one."""
    shift = 0
    for span in spans:
        start = span.start + shift
        yield Span(start, start + len(span.text), old[span.start : span.end])
        shift += len(span.text) - (span.end - span.start)


def _shifted(spans: Sequence[Span], offset: int) -> int:
    """Where the start of a replacement goes."""
    before = (s for s in spans if s.end <= offset)
    return offset + sum(len(s.text) - (s.end - s.start) for s in before)


def moved(old: str, new: str, spans: Sequence[Span], offset: int) -> int | None:
    """Where the word at ``offset`` of the old text is in the new one; None when it is gone."""
    shift = 0
    for span in spans:
        if span.end <= offset:
            shift += len(span.text) - (span.end - span.start)
        elif span.start <= offset:
            inside = _aligned(old[span.start : span.end], span.text, offset - span.start)
            return None if inside is None else span.start + shift + inside
        else:
            break
    return offset + shift


def _aligned(old: str, new: str, offset: int) -> int | None:
    """Where the token at ``offset`` goes when a stretch is replaced, by comparing tokens.

    A token that is once in both is itself, whatever was put around it.
    """
    before, after = _TOKEN.findall(old), _TOKEN.findall(new)
    index, at = 0, 0
    while at < offset and index < len(before):
        at += len(before[index])
        index += 1
    token = before[index] if index < len(before) else ""
    if before.count(token) == after.count(token) == 1:
        return sum(map(len, after[: after.index(token)]))
    for block in SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks():
        if block.a <= index < block.a + block.size:
            return sum(map(len, after[: block.b + index - block.a]))
    return None


def _lost(entry: Entry, one: Occurrence) -> bool:
    same = (entry.path, entry.symbol, entry.kind) == (one.source.path, one.symbol, one.kind)
    return same and entry.at is None and entry.fate in ("open", "preserved", "manual")


def _entry(one: Occurrence) -> Entry:
    line, column, cell = place(one.source, one.start)
    return Entry(
        one.source.path, line, column, one.kind, one.symbol, one.code, one.start, cell=cell
    )


def place(source: Source, offset: int) -> tuple[int, int, int | None]:
    """Line, column and cell of an offset, as a reader of the file finds them."""
    line, column = Layout.of(source).place(offset)
    if source.document is None:
        return line, column, None
    part, at = source.document.place(source, Range(line, column, line, column))
    return at.line, at.column, part.cell
