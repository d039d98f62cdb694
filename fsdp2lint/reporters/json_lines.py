"""One JSON object a line, for programs that read as they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fsdp2lint.reporters._records import records

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Report
    from fsdp2lint.reporters import View


def render(report: Report, view: View) -> str:
    """The objects of the ``json`` format, each on a line of its own."""
    return "".join(msgspec.json.encode(record).decode() + "\n" for record in records(report))
