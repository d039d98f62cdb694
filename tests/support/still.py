"""Whether processes wait for each other for ever: seen from what they do, however fast the machine is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

QUIET = 2.5
"""Seconds without any work after which nothing comes any more: no script sleeps for as long."""
_LAZY_TICKS = 5
"""Clock ticks of work in that time that count as none."""
_PAUSE = 0.2


class Still:
    """Whether some processes have come to rest; never, where there is no ``/proc``."""

    def __init__(self, quiet: float = QUIET) -> None:
        self._quiet = quiet
        self._work, self._since, self._next = -1, time.monotonic(), 0.0

    def seen(self, pids: Iterable[int]) -> bool:
        """Whether neither they nor what they have started has worked for a while, or would if it were given a core.

        Nor would another thread of this process: it may be the store that they wait for.
        """
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _PAUSE
        try:
            threads = [thread for pid in pids for thread in _threads(pid)]
        except OSError:  # one of them ends at this moment
            threads = []
        work = sum(ticks for _, ticks in threads)
        if not threads or not 0 <= work - self._work <= _LAZY_TICKS:
            self._work, self._since = work, now
        every = [*threads, *_own_threads()]
        ready = any(state in "RD" for state, _ in every)  # it runs, or waits for a core or a disk
        return now - self._since > self._quiet and not ready


def _own_threads() -> Iterator[tuple[str, int]]:
    """State and used clock ticks of the threads of this process, but for the one that asks."""
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != threading.get_native_id():
            yield _state(Path("/proc/self/task", thread))


def _threads(pid: int) -> Iterator[tuple[str, int]]:
    """State and used clock ticks of each thread of a process and of its children (``proc(5)``)."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        folder = Path(f"/proc/{pid}/task", thread)
        yield _state(folder)
        children = folder / "children"
        for child in children.read_text().split() if children.exists() else ():
            yield from _threads(int(child))


def _state(thread: Path) -> tuple[str, int]:
    fields = (thread / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[11]) + int(fields[12])
