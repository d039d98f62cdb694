"""What the rules about settings files have in common: places, keys in words, and edits of single keys."""

from __future__ import annotations

from typing import Any

from fsdp2lint.api import Asked, Entry, Finding, Fix, Site, Splice, Trace, without_key


def place(trace: Trace, node: Any) -> Site:
    """Where a node of the settings is."""
    return Site(trace.source, node, node)


def found(trace: Trace, entry: Entry, message: str, fix: Fix | None = None) -> Finding:
    """A finding about a key."""
    return Finding(at=place(trace, entry.key), message=message, fix=fix)


def said(trace: Trace, entry: Entry) -> str:
    """A key and its value as they are written, if that is short."""
    source = trace.source
    code = " ".join(source.text[entry.key.start : entry.value.end].split())
    return f"`{code}`" if len(code) <= 60 else f"`{entry.name}`"


def removed(trace: Trace, asked: Asked, entry: Entry, title: str) -> Fix | None:
    """A fix that takes a key away."""
    if asked.section is None or asked.section.merged or asked.section.shared:
        return None
    start, end, rest = without_key(trace.source.text, asked.section, entry)
    return Fix(title, (Splice(trace.source, start, end, rest),), "safe")


def written(trace: Trace, entry: Entry, text: str, title: str, note: str) -> Fix:
    """A fix that writes another value."""
    edits = (Splice(trace.source, entry.value.start, entry.value.end, text),)
    return Fix(title, edits, "unsafe", note)
