"""A verification as one HTML page that needs nothing from elsewhere.

``html(report)`` makes the page, ``write_report(report, path)`` writes it, and ``report_of`` gathers the
data of a finished verification. PyTorch is not imported here.
"""

from __future__ import annotations

from pathlib import Path

from fsdp2lint.prove.report.data import Curve, Entry, Report
from fsdp2lint.prove.report.gathering import report_of
from fsdp2lint.prove.report.page import html
from fsdp2lint.system.journal import replace_all

__all__ = ["Curve", "Entry", "Report", "html", "report_of", "write_report"]


def write_report(report: Report, path: str | Path) -> None:
    """Write the page to a file, whole or not at all.

    Raises:
        NotWritten: the file cannot be written.
    """
    replace_all({path: html(report).encode()})
