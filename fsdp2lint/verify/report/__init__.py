"""A verification as one HTML page that needs nothing from elsewhere.

``html(report)`` makes the page, ``write_report(report, path)`` writes it, and ``report_of`` gathers the
data of a finished verification. PyTorch is not imported here.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fsdp2lint.verify.report.data import Curve, Entry, Report
from fsdp2lint.verify.report.gathering import report_of
from fsdp2lint.verify.report.page import html

__all__ = ["Curve", "Entry", "Report", "html", "report_of", "write_report"]


def write_report(report: Report, path: str | Path) -> None:
    """Write the page to a file, whole or not at all.

    Raises:
        OSError: the file cannot be written.
    """
    target = Path(path)
    handle, passing = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(html(report))
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(passing, 0o666 & ~mask)
        os.replace(passing, target)
    except BaseException:
        os.unlink(passing)
        raise
