"""Runs scripts on forked ranks, each living the bootstrap of ``rehearse``: seconds less than torchrun.

``python -m tests.verify.forked`` reads a request's file from each line of its input and answers with a
line when its ranks are gone; PyTorch is imported once, with what scripts and the watchers make it import
later: 1.2 s of each rank. What the ranks leave is what ``launch`` collects.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy

from fsdp2lint.rehearse import bootstrap
from fsdp2lint.rehearse.demand import ask
from fsdp2lint.rehearse.forked import EARLY, store_behind
from fsdp2lint.rehearse.holders import look_ahead
from fsdp2lint.rehearse.launch import environment
from fsdp2lint.rehearse.outcome import Request, request_from
from fsdp2lint.rehearse.script import die_with_parent
from tests.evidence.server import FRAMEWORKS
from tests.support.still import Still


def main() -> None:
    """Serve until the input ends."""
    frameworks = FRAMEWORKS if sys.argv[1:] == ["frameworks"] else ()
    for name in (*EARLY, *frameworks):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    look_ahead()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        path = Path(line.rstrip("\n"))
        request = request_from(path.read_bytes())
        with store() as port:
            _wait(request, _fork(request, path, port))
        print("over", flush=True)


@contextlib.contextmanager
def store() -> Iterator[int]:
    """The port of a store at which forked ranks meet; a process of its own keeps it, as it has threads."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent()
                kept = store_behind(listening)
                signal.pause()
                del kept
            finally:
                os._exit(70)
    try:
        yield port
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork(request: Request, path: Path, port: int) -> dict[int, int]:
    pids = {}
    for rank in range(request.nproc):
        pid = os.fork()
        if pid == 0:
            _live(request, path, rank, port)
        pids[rank] = pid
    return pids


def _live(request: Request, path: Path, rank: int, port: int) -> None:
    try:
        os.setsid()
        os.chdir(request.folder or path.parent)
        os.environ.update(environment(request))
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(request.nproc),
            LOCAL_WORLD_SIZE=str(request.nproc),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True",
            TORCH_DIST_INIT_BARRIER="1",  # else a rank may leave while another still connects
            FIXTURE_TMP=os.getcwd(),
        )
        numpy.random.seed()  # as in a process of its own; Python's generator does so by itself
        sys.argv = ["bootstrap", str(path)]
        bootstrap.main()
    finally:
        os._exit(70)


def _wait(request: Request, pids: dict[int, int]) -> None:
    deadline, still = time.monotonic() + request.timeout, Still(quiet=8.0)
    left = dict(pids)
    while left and time.monotonic() < deadline and not still.seen(left.values()):
        for rank, pid in list(left.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del left[rank]
        time.sleep(0.01)
    folder = Path(request.scratch)
    ask(left, lambda rank, kind: folder / f"rank{rank}.{kind}")
    for pid in left.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
