"""What is being analysed, on a terminal, when it takes its time."""

from __future__ import annotations

import sys
import time
from typing import TextIO

PATIENCE = 0.7
"""Seconds before anything is shown."""

PACE = 0.1
"""Seconds between two changes of what is shown."""


class Progress:
    """One line on standard error that is rewritten, and gone in the end."""

    def __init__(self, stream: TextIO | None = None, width: int = 80) -> None:
        self.stream = stream or sys.stderr
        self.width = width
        self._next = time.perf_counter() + PATIENCE
        self._shown = False

    def __call__(self, what: str) -> None:
        """``what`` is being analysed now; when it is empty, nothing is."""
        if not what:
            self.close()
            return
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + PACE
        self._shown = True
        room = self.width - len("analysing ") - 1
        said = what if len(what) <= room else "…" + what[-(room - 1) :]
        self.stream.write(f"\r\x1b[Kanalysing {said}")
        self.stream.flush()

    def close(self) -> None:
        """Take the line away."""
        if self._shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self._shown = False
