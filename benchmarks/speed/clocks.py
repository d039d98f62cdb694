"""What a command costs: CPU seconds and memory, children included."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Command = Sequence[str]
Clock = Callable[[], float]
"""Does something once and says how many CPU seconds it took."""

ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
"""An installed program has its byte code, whatever the shell of a developer says."""

PAUSE = 0.01
"""Seconds between two looks at the memory of a command."""


@dataclass
class Pair:
    """Two things that were timed in turns."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Theirs in the denominator; the median over the pairs."""
        return statistics.median(a / b for a, b in zip(self.ours, self.theirs, strict=True))

    @property
    def medians(self) -> tuple[float, float]:
        """The median seconds of each side."""
        return statistics.median(self.ours), statistics.median(self.theirs)


def in_turns(ours: Clock, theirs: Clock, rounds: int) -> Pair:
    """Time two things ``rounds`` times in turns: what else the machine does hits both alike."""
    pair = Pair()
    ours()
    theirs()  # the first of each warms disk caches and byte code, and does not count
    for _ in range(rounds):
        pair.ours.append(ours())
        pair.theirs.append(theirs())
    return pair


def running(command: Command, folder: Path | None = None) -> Clock:
    """A clock for a command: user and system seconds of its process and of all that it waited for."""

    def clock() -> float:
        before = _children()
        done = subprocess.run(
            command,
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        spent = _children() - before
        if done.returncode not in (0, 1):  # 1: findings
            raise SystemExit(f"{' '.join(command)}\n{done.stderr.decode()}")
        return spent

    return clock


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def inside(python: str, code: str) -> Clock:
    """A clock for a piece of code in a fresh Python, which prints the seconds itself."""

    def clock() -> float:
        done = subprocess.run(
            [python, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        return float(done.stdout.split()[-1])

    return clock


def peak_memory(command: Command, folder: Path | None = None) -> float:
    """The most MiB that a command and its children held at one time; shared pages count once."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    most = 0
    while process.poll() is None:
        most = max(most, sum(map(_resident, _family(process.pid))))
        time.sleep(PAUSE)
    return most / 1024


def _resident(pid: int) -> int:
    """KiB in memory, pages that several processes share divided among them."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))


def _family(pid: int) -> list[int]:
    """A process and those below it."""
    found = [pid]
    for one in found:
        try:
            found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except OSError:
            continue
    return found
