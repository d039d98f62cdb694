"""The ledger for a reviewer: a chapter for each model, with the lines that build it as they were and as they become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from fsdp2lint.edits.layout import Layout
from fsdp2lint.migrate.engine import Migration
from fsdp2lint.migrate.ledger import Entry
from fsdp2lint.migrate.leftovers import statement_at
from fsdp2lint.migrate.units import Line, Model, Stuck
from fsdp2lint.source.source import Source

Sources = dict[str, tuple[Source, Source]]
"""The files by their paths, before and after."""

MOST = 40
"""So many lines of a model are shown."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """What the ledger says of one model; of all that is no model's where it has no title."""

    title: str
    was: tuple[str, ...]
    becomes: tuple[str, ...]
    """Empty where the lines stay as they are."""
    entries: Sequence[Entry]


def chapters(migration: Migration) -> list[Chapter]:
    """The ledger by model, in the order of the text, then the rest; only the rest where no model is known."""
    sources = {
        old.path: (old, new) for old, new in zip(migration.before, migration.after, strict=True)
    }
    left = list(migration.ledger.entries)
    found = []
    for model in migration.models:
        mine = [one for one in left if _line(one, sources) in model.lines]
        left = [one for one in left if one not in mine]
        if mine:
            found.append(_chapter(model, mine, sources))
    return [*found, Chapter("", (), (), left)] if left else found


def _line(entry: Entry, sources: Sources) -> Line:
    """The line on which the statement begins that an entry is in; 0 where it is in no Python file."""
    source = sources[entry.path][0] if entry.path in sources else None
    if source is None or source.document is not None or entry.kind in ("setting", "launch"):
        return entry.path, 0
    at = Layout.of(source).offset(entry.line, entry.column)
    return entry.path, _lines_of(source, at).start


def _lines_of(source: Source, offset: int) -> range:
    """The lines of the innermost statement around an offset, without those of the statements in it."""
    layout = Layout.of(source)
    start, end = layout.span(statement_at(source, offset))
    return range(layout.place(start)[0], layout.place(end)[0] + 1)


def _chapter(model: Model, entries: Sequence[Entry], sources: Sources) -> Chapter:
    was: list[str] = []
    becomes: list[str] = []
    for one in model.constructors:
        old, new = sources[one.path]
        span = _span(one, old)
        was += [old.lines[number - 1].rstrip() for number in span]
        becomes += _after(old.lines, new.lines, span)
    places = [one.shown for one in model.constructors]
    title = f"The model of {places[0]}" + "".join(f" and {place}" for place in places[1:])
    return Chapter(title, _short(was), _short(becomes) if becomes != was else (), entries)


def _span(one: Stuck, source: Source) -> range:
    return _lines_of(source, one.offset(source))


def _after(old: Sequence[str], new: Sequence[str], span: range) -> Iterator[str]:
    """What the lines of a span have become."""
    first, last = span.start - 1, span.stop - 1
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for kind, begin, end, start, stop in matcher.get_opcodes():
        if begin >= last or end <= first:
            continue
        if kind == "equal":
            start, stop = start + max(first - begin, 0), stop - max(end - last, 0)
        yield from (line.rstrip() for line in new[start:stop])


def _short(lines: Sequence[str]) -> tuple[str, ...]:
    return (*lines[:MOST], "…") if len(lines) > MOST else tuple(lines)
