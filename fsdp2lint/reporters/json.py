"""One JSON list, for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fsdp2lint.reporters._records import records

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Report
    from fsdp2lint.reporters import View


def render(report: Report, view: View) -> str:
    """A list of findings with ruff's keys, and ``related``, ``note`` and ``fingerprint``."""
    raw = msgspec.json.encode(list(records(report)))
    return msgspec.json.format(raw, indent=2).decode() + "\n"
