"""What the rules about FSDP1 share: they read one table of what there is and what comes instead."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Layout, Occurrence, Site, Trace, occurrences


def used(trace: Trace, code: str) -> Iterator[Finding]:
    """One finding for each use of FSDP1 that belongs to a rule; arguments belong to their call."""
    seen: set[object] = set()
    for one in occurrences(trace, code):
        if one.kind not in ("argument", "framework", "launch"):
            if one.node not in seen:
                seen.add(one.node)
                yield Finding(at=_site(one), message=_message(one))


def _site(one: Occurrence) -> Site:
    return Site(one.source, one.node, Layout.of(one.source).statement(one.node))


def _message(one: Occurrence) -> str:
    said = f"`{one.symbol}` belongs to FSDP1"
    if one.instead:
        said += f"; FSDP2 has {one.instead}"
    return f"{said} (`fsdp2lint migrate`)"
