"""A process that has imported PyTorch and forks ranks from itself: ``python -m fsdp2lint.rehearse.forked``.

A line of JSON asks for one thing, and its answers are lines: ``ranks REQUEST`` forks an agent, which starts the ranks and
waits for them as torchrun does, and ``compare TASK OUT`` compares tensors. Importing PyTorch and what scripts and the
watchers make it import takes 2 s of processor time, for torchrun and for each rank; here it is done once.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import NoReturn

from torch._C._distributed_c10d import TCPStore

from fsdp2lint.prove.equality import apart
from fsdp2lint.rehearse import bootstrap
from fsdp2lint.rehearse.holders import look_ahead
from fsdp2lint.rehearse.launch import LOG, environment
from fsdp2lint.rehearse.outcome import Request, request_from
from fsdp2lint.rehearse.script import die_with_parent

_STANDINS = "accelerator amp cuda data ddp fsdp groups older saving spawn tensors".split()
EARLY = (
    "fsdp2lint.rehearse.fakes",
    "fsdp2lint.rehearse.recording",
    *(f"fsdp2lint.rehearse.standin.{name}" for name in _STANDINS),
    "numpy.random",
    "safetensors.torch",
    "torch._dynamo",
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
    "torch.distributed.checkpoint._fsspec_filesystem",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.checkpoint.stateful",
    "torch.distributed.fsdp.wrap",
    "torch.optim.swa_utils",
    "torch.utils.data.distributed",
    "torch.utils.serialization.config",
)
"""What most ranks import; none of it starts a thread or draws a random number."""

PATIENCE = 5.0
"""Seconds that the other ranks have to end when one has failed and they were asked to."""


def main() -> None:
    """Serve until the input ends."""
    for name in EARLY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    look_ahead()
    gc.collect()
    gc.freeze()
    if _threads() > 1:  # a fork would have none of the others, and whatever locks they hold
        _say({"forks": False})
        return
    _say({"forks": True})
    for line in sys.stdin:
        what, *words = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _do(what, words)
        _say({"pid": pid})
        _, status = os.waitpid(pid, 0)
        _say({"status": os.waitstatus_to_exitcode(status)})


def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def _do(what: str, words: list[str]) -> NoReturn:
    status = 1
    try:
        os.setsid()
        die_with_parent()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)
        if what == "compare":
            apart.main(Path(words[0]), Path(words[1]))
            status = 0
        else:
            path = Path(words[0])
            status = _agent(request_from(path.read_bytes()), path)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _agent(request: Request, path: Path) -> int:
    """Start the ranks, keep the store at which they meet, and end the others when one fails."""
    log = os.open(path.with_name(LOG), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        ranks = {_fork(request, path, rank, port): rank for rank in range(request.nproc)}
        # only now: a store has threads, and a rank that connects before waits for it
        store = store_behind(listening)
    failed = _wait(ranks)
    del store
    return int(failed)


def store_behind(listening: socket.socket) -> TCPStore:
    """The store at which ranks meet that know the port of this socket, which it takes over.

    No other process can get that port before the ranks do, as it could get one that is only free.
    """
    return TCPStore(
        "127.0.0.1",
        listening.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
        use_libuv=False,  # in torch 2.7 and before, the other kind takes no socket
    )


def _fork(request: Request, path: Path, rank: int, port: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            _live(request, path, rank, port)
        finally:
            os._exit(70)
    return pid


def _live(request: Request, path: Path, rank: int, port: int) -> None:
    os.setsid()
    os.chdir(request.folder or path.parent)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.getcwd()  # `python -m` puts it there
    os.environ.update(environment(request))
    os.environ.update(_as_torchrun(request.nproc, rank, port))
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed()  # as in a process of its own; Python's generator does so by itself
    sys.argv = ["bootstrap", str(path)]
    bootstrap.main()


def _as_torchrun(world: int, rank: int, port: int) -> dict[str, str]:
    """What torchrun sets for a rank (``torch/distributed/elastic/agent/server/local_elastic_agent.py``)."""
    found = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "ROLE_RANK": rank,
        "GROUP_RANK": 0,
        "ROLE_NAME": "default",
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "ROLE_WORLD_SIZE": world,
        "GROUP_WORLD_SIZE": 1,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": uuid.uuid4(),
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    return {name: str(value) for name, value in found.items()}


def _wait(ranks: dict[int, int]) -> bool:
    """Whether any rank failed, when none is left."""
    left, failed, deadline = dict(ranks), False, float("inf")
    while left:
        for pid in list(left):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del left[pid]
                if status and not failed:
                    failed, deadline = True, time.monotonic() + PATIENCE
                    _signal(left, signal.SIGTERM)
        if time.monotonic() > deadline:
            _signal(left, signal.SIGKILL)
        time.sleep(0.01)
    return failed


def _signal(ranks: dict[int, int], number: signal.Signals) -> None:
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)


if __name__ == "__main__":
    main()
