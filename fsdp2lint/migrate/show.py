"""The account of a migration in words: for the terminal, for a pull request, for a program."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import msgspec

from fsdp2lint.ask.wrapped import BOTH_CLASSES
from fsdp2lint.catalogue.findings import Finding
from fsdp2lint.check.diagnostics import Place
from fsdp2lint.check.fixing import diff
from fsdp2lint.edits.layout import Layout
from fsdp2lint.migrate.commits import Commit
from fsdp2lint.migrate.engine import Migration
from fsdp2lint.migrate.ledger import FATES, Entry, Status
from fsdp2lint.migrate.leftovers import statement_at
from fsdp2lint.migrate.rule_fixes import site_of
from fsdp2lint.migrate.sides import VARIABLE, is_side_by_side
from fsdp2lint.migrate.units import Line, Model, Stuck
from fsdp2lint.source.source import Source
from fsdp2lint.system.plain import encoded, in_json, no_command, one_line

FORMATS = ("text", "markdown", "json", "html")

_OF_MODELS = ("FSDP106", "FSDP107", "FSDP110")
"""Uses of a wrapped model: ``no_sync``, ``clip_grad_norm_``, tests for its class."""

_MEANS = {
    "preserved": "kept, and still right",
    "changed": "rewritten",
    "dropped": "removed, without effect on training",
    "manual": "left for manual migration",
    "open": "not processed",
}


@dataclass(frozen=True, slots=True)
class Applied:
    """What the run did with the new text: nothing (a dry run), or it wrote it."""

    written: bool = False
    backup: str = ""
    """The folder that holds the files as they were, where there is one."""
    proof: str = ""
    """What ``--verify`` found, in one sentence."""
    unread: int = 0
    """How many files could not be read, whatever they hold of FSDP1."""


DRY = Applied()

Sources = dict[str, tuple[Source, Source]]
"""The files by their paths, before and after."""

MOST_LINES = 40
"""So many lines of a model are shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the ledger: an occurrence, or what all import lines of a file have in common."""

    path: str
    place: str
    line: int
    what: str
    fate: Status
    note: str
    skeleton: str = ""


@dataclass(frozen=True, slots=True)
class Chapter:
    """What the ledger says of one model; of all that is no model's where it has no title."""

    title: str
    was: tuple[str, ...]
    becomes: tuple[str, ...]
    """Empty where the lines stay as they are."""
    entries: Sequence[Entry]


def rows(entries: Sequence[Entry]) -> Iterator[Row]:
    """The ledger as people read it: imports, and what waits for something else, fold into one row a reason."""
    folded: set[tuple[str, ...]] = set()
    counts = Counter(_common(entry) for entry in entries if _folds(entry))
    for entry in entries:
        what, line = _what(entry), entry.line
        if _folds(entry):
            if _common(entry) in folded:
                continue
            folded.add(_common(entry))
            count = counts[_common(entry)]
            if count > 1:
                what = f"{count} {'imports' if entry.kind == 'import' else 'places'}"
        yield Row(entry.path, entry.place, line, what, entry.fate, entry.note, entry.skeleton)


def _folds(entry: Entry) -> bool:
    """Whether an entry shares its row with others of the same reason: imports, and what follows another."""
    return entry.kind == "import" or (entry.fate == "manual" and not entry.todo)


def _common(entry: Entry) -> tuple[str, ...]:
    return entry.path, entry.fate, entry.why, str(entry.kind == "import")


def text(migration: Migration, columns: int = 0, applied: Applied = DRY) -> str:
    """The ledger for people: each file's occurrences, then the sums.

    On a terminal with so many ``columns`` (0: it is none) what is long goes on under its beginning.
    """
    lines: list[str] = []
    every = list(rows(migration.ledger.entries))
    for path in dict.fromkeys(row.path for row in every):
        lines.append(path)
        mine = [row for row in every if row.path == path]
        width = max(len(row.what) for row in mine)
        margin = max(5, *(len(row.place) for row in mine))
        for row in mine:
            head = f"  {row.place:>{margin}}  {row.fate:<9}  {row.what:<{width}}  "
            lines += _hanging(head, row.note, columns)
            lines += [f"{' ' * (margin + 4)}{line}".rstrip() for line in row.skeleton.splitlines()]
        lines.append("")
    return "\n".join(map(one_line, [*lines, *_conclusion(migration, applied)])) + "\n"


def markdown(migration: Migration, applied: Applied = DRY) -> str:
    """The ledger as a table, for a pull request."""
    lines = ["# From FSDP1 to FSDP2", "", *_conclusion(migration, applied), ""]
    every = chapters(migration)
    for chapter in every:
        if chapter.title:
            lines += [f"## {one_line(chapter.title)}", "", *_lines_of(chapter)]
        elif len(every) > 1:
            lines += ["## Everything else", ""]
        lines += ["| file | line | what | fate | why |", "|---|---|---|---|---|"]
        for row in rows(chapter.entries):
            cells = (row.path, row.place, f"`{row.what}`", row.fate, row.note)
            lines.append("| " + " | ".join(one_line(c).replace("|", "\\|") for c in cells) + " |")
        lines.append("")
    lines.pop()
    for row in rows(migration.ledger.entries):
        if row.skeleton:
            code = map(one_line, row.skeleton.splitlines())
            lines += [
                "",
                f"To begin with, for {row.path}:{row.place}:",
                "",
                "```python",
                *code,
                "```",
            ]
    return "\n".join(lines) + "\n"


def _lines_of(chapter: Chapter) -> Iterator[str]:
    """The lines that build a model, before and after."""
    was = "It was" if chapter.becomes else "It stays as it is"
    for said, code in ((was, chapter.was), ("It becomes", chapter.becomes)):
        if code:
            text = textwrap.dedent("\n".join(map(one_line, code)))
            yield from (f"{said}:", "", "```python", *text.splitlines(), "```", "")


def json(migration: Migration, applied: Applied = DRY) -> str:
    """Everything, for a program: entries, sums, files, findings that are left."""
    data = _data(migration, applied)
    return msgspec.json.format(encoded(data), indent=2).decode() + "\n"


def html(migration: Migration, applied: Applied = DRY) -> str:
    """The ledger and the diff as one page that needs nothing else: the page of ``verify``."""
    from fsdp2lint.prove.report import data, page

    ledger = (
        data.Entry(row.path, row.line, row.what, row.fate, row.note, model=chapter.title)
        for chapter in chapters(migration)
        for row in rows(chapter.entries)
    )
    report = data.Report(
        "FSDP1",
        "FSDP2",
        facts=tuple((fate, str(count)) for fate, count in migration.ledger.sums.items()),
        diff="".join(diff(old, new.text) for old, new in migration.changed),
        ledger=tuple(ledger),
        notes=tuple(_conclusion(migration, applied)),
    )
    return page.html(report)


def render(migration: Migration, kind: str, columns: int = 0, applied: Applied = DRY) -> str:
    """The account in one of :data:`FORMATS`; ``columns`` are those of a terminal."""
    if kind == "text":
        return no_command(text(migration, columns, applied))
    made = {"markdown": markdown, "json": json, "html": html}[kind](migration, applied)
    return in_json(made) if kind == "json" else no_command(made)


def message(commit: Commit) -> str:
    """The message of a commit: what it is about, and its part of the ledger."""
    lines = [f"fsdp2lint: {commit.title}", ""]
    for row in rows(commit.entries):
        lines.append(f"{row.path}:{row.place} {row.what} {row.fate}: {row.note}")
    return "\n".join(lines).rstrip() + "\n"


def sums(migration: Migration) -> str:
    """The sums in one line."""
    counts = migration.ledger.sums
    said = [f"{counts[fate]} {fate}" for fate in FATES if counts[fate] or fate != "open"]
    count = len(migration.ledger.entries)
    return f"{count} occurrence{'' if count == 1 else 's'} of FSDP1: {', '.join(said)}."


def _conclusion(migration: Migration, applied: Applied) -> Iterator[str]:
    ledger = migration.ledger
    if ledger.entries:
        yield sums(migration)
        yield " ".join(_verdict(migration, applied))
    elif migration.changed:
        yield " ".join(_verdict(migration, applied))
    else:
        yield "No FSDP1 code found."
    yield from _sides(migration, applied)
    narrowed = _narrowed(ledger.entries)
    if narrowed is not None:
        example = f"{narrowed.path}:{narrowed.place}"
        yield (
            "No file here builds an FSDP1 model: the new code accepts models of FSDP1 and of `fully_shard`, "
            f"for example at {example}."
            if any(one.why == BOTH_CLASSES for one in ledger.entries)
            else "No file here builds an FSDP1 model, and the new code accepts only models of `fully_shard`: keep both "
            f"classes where callers still pass FSDP1 models, for example at {example}."
        )
    if migration.todos:
        said = ", ".join(f"{todo.path}:{todo.place}" for todo in migration.todos)
        yield f"TODO(fsdp2lint) comments of an earlier run that are still in the code: {said}"
    if applied.proof:
        yield applied.proof
    for _, finding in migration.remaining:
        site = site_of(finding)
        at = Place.of(site).in_document
        yield f"{at.part}:{at.range.line}: after the migration: {finding.message}"
    yield from migration.failures


def _sides(migration: Migration, applied: Applied) -> Iterator[str]:
    """What became of the files that hold FSDP1 beside FSDP2."""
    were, are = (sum(map(is_side_by_side, one)) for one in (migration.before, migration.after))
    if are:
        files = f"{are} file{'' if are == 1 else 's'}"
        done = "is" if applied.written or are == were else "would be"
        yield (
            f"FSDP1 {done} beside FSDP2 in {files}: `{VARIABLE}=1` in the environment trains with it, and `migrate` "
            "without `--side-by-side` takes it out; the ledger speaks of the FSDP2 side."
        )
        alone = [one.path for one, _ in migration.changed if not one.path.endswith((".py", ".pyi"))]
        if alone:
            yield f"For FSDP2 alone, without a side of FSDP1: {', '.join(alone)}."
    elif were:
        files = f"{were} file{'' if were == 1 else 's'}"
        done = "is gone from" if applied.written else "would go from"
        yield f"FSDP1 {done} the {files} that held it beside FSDP2."


def _narrowed(entries: Sequence[Entry]) -> Entry | None:
    """The first use of a model that is rewritten although no line of the program builds an FSDP1 model.

    A library cannot know which models its callers pass: after the migration FSDP1's are no longer among them.
    """
    uses = [entry for entry in entries if entry.kind not in ("import", "string", "launch")]
    if any(e.code == "FSDP101" or e.kind in ("framework", "setting") for e in uses):
        return None
    return next((e for e in uses if e.code in _OF_MODELS and e.fate == "changed"), None)


def _verdict(migration: Migration, applied: Applied) -> Iterator[str]:
    """What is left, what would change or has changed, and what to do next."""
    ledger, changed = migration.ledger, len(migration.changed)
    files = f"{changed} file{'' if changed == 1 else 's'}"
    if not ledger.complete:
        yield "Some codemods were left out, so not everything is accounted for."
    if ledger.manual:
        count = len(ledger.manual)
        yield f"{count} {'is' if count == 1 else 'are'} left for manual migration."
    if not changed:
        yield (
            "Nothing changes." if ledger.manual or not ledger.complete else "Nothing has to change."
        )
    elif applied.written:
        left = ledger.manual or migration.todos or applied.unread
        done = ledger.complete and not left
        yield f"All FSDP1 code is migrated; {files} changed." if done else f"{files} changed."
        if applied.backup:
            yield f"Backup of the {files}: {applied.backup}"
    else:
        yield f"{files} would change; nothing was written. Apply with `--write`."


def _hanging(head: str, note: str, columns: int) -> list[str]:
    """A line, or several whose ends are under each other if there is room for that."""
    if columns - len(head) < 24:
        return [f"{head}{note}".rstrip()]
    pieces = textwrap.wrap(
        note, columns - len(head), break_on_hyphens=False, break_long_words=False
    ) or [""]
    heads = [head, *[" " * len(head)] * (len(pieces) - 1)]
    return [f"{one}{piece}".rstrip() for one, piece in zip(heads, pieces, strict=True)]


def _what(entry: Entry) -> str:
    return f"{entry.symbol}=" if entry.kind == "argument" else entry.symbol


def _data(migration: Migration, applied: Applied) -> dict[str, Any]:
    return {
        "occurrences": [
            {
                "filename": e.path,
                "cell": e.cell,
                "location": {"row": e.line, "column": e.column},
                "kind": e.kind,
                "symbol": e.symbol,
                "code": e.code,
                "fate": e.fate,
                "means": _MEANS[e.fate],
                "why": e.why,
                "todo": e.todo,
                "skeleton": e.skeleton,
                "codemod": e.by,
            }
            for e in migration.ledger.entries
        ],
        "models": [
            [
                {"filename": one.path, "row": one.line, "column": one.column}
                for one in model.constructors
            ]
            for model in migration.models
        ],
        "sums": migration.ledger.sums,
        "complete": migration.ledger.complete,
        "changed": [old.path for old, _ in migration.changed],
        "files": [
            {"filename": old.path, "text": new.text, "diff": diff(old, new.text)}
            for old, new in migration.changed
        ],
        "written": applied.written,
        "backup": applied.backup or None,
        "verified": applied.proof or None,
        "todos": [
            {"filename": todo.path, "row": todo.line, "cell": todo.cell, "todo": todo.text}
            for todo in migration.todos
        ],
        "stages": [
            {"codemod": stage.codemod, "files": [old.path for old, _ in stage.changed]}
            for stage in migration.stages
        ],
        "findings": [_finding(rule.code, finding) for rule, finding in migration.remaining],
        "failures": migration.failures,
    }


def _finding(code: str, finding: Finding) -> dict[str, Any]:
    at = Place.of(site_of(finding)).in_document
    return {
        "code": code,
        "filename": at.source.path,
        "cell": at.source.cell,
        "row": at.range.line,
        "message": finding.message,
    }


# -- by model ------------------------------------------------------------------------------------------------------


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
    return entry.path, _statement_lines(source, at).start


def _statement_lines(source: Source, offset: int) -> range:
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
    return _statement_lines(source, one.offset(source))


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
    return (*lines[:MOST_LINES], "…") if len(lines) > MOST_LINES else tuple(lines)
