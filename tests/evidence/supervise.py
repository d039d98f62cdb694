"""One scenario: fork the ranks, host their store as torchrun's agent does, wait, kill, collect."""

from __future__ import annotations

import ctypes
import json
import linecache
import logging
import os
import re
import signal
import socket
import sys
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from torch._C._distributed_c10d import TCPStore

from fsdp2lint.rehearse.demand import ask
from tests.support.still import Still

from .files import look
from .rank import Job, hung, live
from .results import Seen

_BEGINNING = 15.0
"""Seconds that ranks get to find each other: gloo looks for names and connects with pauses, without any work."""

_STREAMS = ("out", "err")
_PEER_ABORT = re.compile(r"EnforceNotMet|terminate called after throwing.*gloo", re.DOTALL)
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in ', re.MULTILINE)


def supervise(job: Job) -> NoReturn:
    """Run a job in this freshly forked process and write `result.json` into its scratch folder."""
    os.setsid()
    die_with_parent()
    started = time.monotonic()
    job.folder.mkdir(parents=True, exist_ok=True)
    listening = socket.create_server(("127.0.0.1", 0))
    port = int(listening.getsockname()[1])
    ranks = {_fork_rank(job, rank, port, listening): rank for rank in range(job.nproc)}
    store = TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=job.timeout),
        master_listen_fd=listening.detach(),
        use_libuv=False,  # in torch 2.7 and before, the other kind takes no socket
    )
    statuses = _wait(job, ranks)
    results = [_collect(job, rank, statuses[rank]) for rank in sorted(statuses)]
    del store
    logging.disable(logging.CRITICAL)
    left = [{**asdict(item), "share": str(item.share)} for item in look(job.folder)]
    seconds = time.monotonic() - started
    data = {"ranks": results, "left": left, "seconds": seconds}
    (job.scratch / "result.json").write_text(json.dumps(data))
    os._exit(0)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _fork_rank(job: Job, rank: int, port: int, listening: socket.socket) -> int:
    child = os.fork()
    if child:
        return child
    try:
        die_with_parent()
        listening.close()
        live(job, rank, port)
    finally:
        os._exit(70)


def _wait(job: Job, ranks: dict[int, int]) -> dict[int, int | None]:
    """Exit statuses by rank; None for one that had to be killed."""
    statuses: dict[int, int | None] = {}
    deadline, still = time.monotonic() + job.timeout, Still()
    begun = time.monotonic() + _BEGINNING
    while ranks:
        for pid, rank in list(ranks.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del ranks[pid]
                statuses[rank] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline or still.seen(ranks):
            ask({rank: pid for pid, rank in ranks.items()}, job.of_rank)
            if time.monotonic() < begun and any(_begins(job, rank) for rank in ranks.values()):
                still = Still()
                continue
            for pid, rank in ranks.items():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                statuses[rank] = None
            break
        time.sleep(0.005)
    return statuses


def _begins(job: Job, rank: int) -> bool:
    """Whether a rank is still on its way into its group, where it may wait for seconds; what it said is forgotten then."""
    dump = job.of_rank(rank, "dump")
    if " in init_process_group" not in dump.read_text("utf-8", "replace"):
        return False
    os.truncate(dump, 0)
    return True


def _collect(job: Job, rank: int, status: int | None) -> dict[str, Any]:
    stdout, stderr = (job.of_rank(rank, kind).read_text("utf-8", "replace") for kind in _STREAMS)
    result: dict[str, Any] = {"rank": rank, "stdout": stdout, "stderr": stderr}
    report = job.of_rank(rank, "json")
    if report.exists():
        result.update(json.loads(report.read_text()))
        return result
    if status is None:
        outcome, error = "hung", "killed: it waited for ever, or the time was over"
    else:
        outcome = "hung" if hung(stderr) or _PEER_ABORT.search(stderr) else "died"
        error = f"exit status {status}"
    dump = job.of_rank(rank, "dump").read_text("utf-8", "replace") if status is None else stderr
    where = _innermost(job.script.parent, dump)
    return result | {
        "outcome": outcome,
        "error": error,
        "where": where,
        "traceback": "",
        "seen": asdict(Seen()),
    }


def _innermost(folder: Path, dump: str) -> str:
    """The script's innermost line in a faulthandler dump (most recent call first)."""
    for frame in _FRAME.finditer(dump):
        if Path(frame["file"]).is_relative_to(folder):
            return linecache.getline(frame["file"], int(frame["line"])).strip()
    return ""
