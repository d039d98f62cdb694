"""The ledger and the diff as one HTML page that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from fsdp2lint.migrate.ledger import FATES, Entry

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; vertical-align: top; border-bottom: 1px solid #8884; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8884; border-radius: 6px; }
.manual td:nth-child(4), .open td:nth-child(4) { color: #c62828; font-weight: 600; }
.add { background: #2e7d3226; } .del { background: #c6282826; } .at { color: #1976d2; }
"""


def page(entries: Sequence[Entry], conclusion: Sequence[str], diff: str) -> str:
    """The page; every text in it is escaped."""
    return "".join(
        (
            "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n",
            "<title>From FSDP1 to FSDP2</title>\n",
            f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>From FSDP1 to FSDP2</h1>\n",
            *(f"<p>{escape(line)}</p>\n" for line in conclusion),
            *_sums(entries),
            *_ledger(entries),
            *_changes(diff),
            "</body>\n</html>\n",
        )
    )


def _sums(entries: Sequence[Entry]) -> Iterator[str]:
    yield "<table>\n<tr>" + "".join(f"<th>{fate}</th>" for fate in FATES) + "</tr>\n<tr>"
    for fate in FATES:
        yield f"<td>{sum(entry.fate == fate for entry in entries)}</td>"
    yield "</tr>\n</table>\n"


def _ledger(entries: Sequence[Entry]) -> Iterator[str]:
    yield "<h2>Ledger</h2>\n<table>\n"
    yield "<tr><th>file</th><th>line</th><th>what</th><th>became</th><th>why</th></tr>\n"
    for entry in entries:
        note = escape(entry.why)
        if entry.todo:
            note += f"<br><b>To do:</b> {escape(entry.todo)}"
        what = f"{entry.symbol}=" if entry.kind == "argument" else entry.symbol
        yield (
            f"<tr class='{entry.fate}'><td>{escape(entry.path)}</td><td>{entry.line}</td>"
            f"<td><code>{escape(what)}</code></td><td>{entry.fate}</td><td>{note}</td></tr>\n"
        )
    yield "</table>\n"


def _changes(diff: str) -> Iterator[str]:
    if not diff:
        return
    yield "<h2>Changes</h2>\n<pre>"
    for line in diff.splitlines():
        kind = {"+": "add", "-": "del", "@": "at"}.get(line[:1])
        text = escape(line)
        yield f"<span class='{kind}'>{text}</span>\n" if kind else f"{text}\n"
    yield "</pre>\n"
