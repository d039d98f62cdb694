"""The account of a migration in words: for the terminal, for a pull request, for a program."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from fsdp2lint.diagnostics import Place
from fsdp2lint.findings import Finding
from fsdp2lint.fixing import diff
from fsdp2lint.migrate.contract import site_of
from fsdp2lint.migrate.engine import Migration, Stage
from fsdp2lint.migrate.ledger import FATES, Entry

FORMATS = ("text", "markdown", "json", "html")

_MEANS = {
    "preserved": "stays and is right",
    "changed": "rewritten",
    "dropped": "gone, and that is harmless",
    "manual": "left to you",
    "open": "not looked at",
}


def text(migration: Migration, columns: int = 0) -> str:
    """The ledger for people: each file's occurrences, then the sums.

    On a terminal with so many ``columns`` (0: it is none) what is long goes on under its beginning.
    """
    lines: list[str] = []
    for path in dict.fromkeys(e.path for e in migration.ledger.entries):
        lines.append(path)
        rows = [e for e in migration.ledger.entries if e.path == path]
        width = max(len(_what(e)) for e in rows)
        margin = max(5, *(len(e.place) for e in rows))
        for entry in rows:
            note = f"{entry.why}; to do: {entry.todo}" if entry.todo else entry.why
            head = f"  {entry.place:>{margin}}  {entry.fate:<9}  {_what(entry):<{width}}  "
            lines += _hanging(head, note, columns)
        lines.append("")
    return "\n".join([*lines, *_conclusion(migration)]) + "\n"


def markdown(migration: Migration) -> str:
    """The ledger as a table, for a pull request."""
    lines = ["# From FSDP1 to FSDP2", "", *_conclusion(migration), ""]
    lines += ["| file | line | what | became | why |", "|---|---|---|---|---|"]
    for entry in migration.ledger.entries:
        note = f"{entry.why}. **To do:** {entry.todo}" if entry.todo else entry.why
        cells = (entry.path, entry.place, f"`{_what(entry)}`", entry.fate, note)
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"


def json(migration: Migration) -> str:
    """Everything, for a program: entries, sums, files, findings that are left."""
    return msgspec.json.format(msgspec.json.encode(_data(migration)), indent=2).decode() + "\n"


def html(migration: Migration) -> str:
    """The ledger and the diff as one page that needs nothing else: the page of ``verify``, nothing run."""
    from fsdp2lint.verify.report import data, page

    rows = (
        data.Entry(
            e.path, e.line, _what(e), e.fate, "; to do: ".join(filter(None, (e.why, e.todo)))
        )
        for e in migration.ledger.entries
    )
    report = data.Report(
        "FSDP1",
        "FSDP2",
        facts=tuple((fate, str(count)) for fate, count in migration.ledger.sums.items()),
        diff="".join(diff(old, new.text) for old, new in migration.changed),
        ledger=tuple(rows),
        notes=tuple(_conclusion(migration)),
    )
    return page.html(report)


def render(migration: Migration, kind: str, columns: int = 0) -> str:
    """The account in one of :data:`FORMATS`; ``columns`` are those of a terminal."""
    if kind == "text":
        return text(migration, columns)
    return {"markdown": markdown, "json": json, "html": html}[kind](migration)


def message(stage: Stage) -> str:
    """The message of the commit that holds what one codemod did."""
    lines = [f"fsdp2lint: {stage.codemod}", ""]
    for entry in stage.entries:
        lines.append(f"{entry.path}:{entry.place} {_what(entry)} {entry.fate}: {entry.why}")
    return "\n".join(lines).rstrip() + "\n"


def sums(migration: Migration) -> str:
    """The sums in one line."""
    counts = migration.ledger.sums
    said = [f"{counts[fate]} {fate}" for fate in FATES if counts[fate] or fate != "open"]
    return f"{len(migration.ledger.entries)} occurrences of FSDP1: {', '.join(said)}"


def _conclusion(migration: Migration) -> Iterator[str]:
    yield sums(migration)
    changed = len(migration.changed)
    files = f"{changed} file{'' if changed == 1 else 's'}"
    ledger = migration.ledger
    if not ledger.entries:
        yield "There is nothing of FSDP1 here."
    elif not ledger.complete:
        yield f"Not everything is accounted for; {files} would change."
    elif ledger.manual:
        count = len(ledger.manual)
        yield f"{count} of them {'is' if count == 1 else 'are'} left to you; {files} changed."
    elif changed:
        yield f"All of it is migrated; {files} changed."
    else:
        yield "Nothing has to change."
    for _, finding in migration.remaining:
        site = site_of(finding)
        at = Place.of(site).told
        yield f"{at.part}:{at.range.line}: after the migration: {finding.message}"
    yield from migration.failures


def _hanging(head: str, note: str, columns: int) -> list[str]:
    """A line, or several whose ends stand under each other if there is room for that."""
    if columns - len(head) < 24:
        return [f"{head}{note}".rstrip()]
    pieces = textwrap.wrap(note, columns - len(head), break_on_hyphens=False) or [""]
    heads = [head, *[" " * len(head)] * (len(pieces) - 1)]
    return [f"{one}{piece}".rstrip() for one, piece in zip(heads, pieces, strict=True)]


def _what(entry: Entry) -> str:
    return f"{entry.symbol}=" if entry.kind == "argument" else entry.symbol


def _data(migration: Migration) -> dict[str, Any]:
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
                "codemod": e.by,
            }
            for e in migration.ledger.entries
        ],
        "sums": migration.ledger.sums,
        "complete": migration.ledger.complete,
        "changed": [old.path for old, _ in migration.changed],
        "stages": [
            {"codemod": stage.codemod, "files": [old.path for old, _ in stage.changed]}
            for stage in migration.stages
        ],
        "findings": [_finding(rule.code, finding) for rule, finding in migration.remaining],
        "failures": migration.failures,
    }


def _finding(code: str, finding: Finding) -> dict[str, Any]:
    at = Place.of(site_of(finding)).told
    return {
        "code": code,
        "filename": at.source.path,
        "cell": at.source.cell,
        "row": at.range.line,
        "message": finding.message,
    }
