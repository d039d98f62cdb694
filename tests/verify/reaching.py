"""Notes which lines of a program a run reaches: called first on every rank, and quick where nobody asks for it."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from fsdp2lint.rehearse.stacks import own

FOLDER = "REACHED"
"""The variable with the folder for what is noted; nothing is unless it has a file ``on``."""


def record() -> None:
    """Trace the script, and write down its lines in the end, as ``file:line``."""
    folder = Path(os.environ[FOLDER])
    if not (folder / "on").exists():
        return
    seen: set[str] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call" and not own(frame.f_code.co_filename):
            return None
        seen.add(f"{os.path.realpath(frame.f_code.co_filename)}:{frame.f_lineno}")
        return trace

    def write() -> None:
        sys.settrace(None)
        (folder / f"{os.getpid()}.lines").write_text("\n".join(sorted(seen)), "utf-8")

    atexit.register(write)
    sys.settrace(trace)
