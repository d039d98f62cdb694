"""Runs scripts on forked ranks, each living the bootstrap of ``rehearse``: seconds less than torchrun.

``python -m tests.verify.forked FOLDER SCRIPT...`` leaves one folder of reports a script.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time
from pathlib import Path

from fsdp2lint.verify import bootstrap
from fsdp2lint.verify.launch import DUMP_TIME
from fsdp2lint.verify.outcome import Request, packed

NPROC = 2
LIMIT = 25.0
ALONE = 3.0
"""Seconds for the other ranks when one is over."""


def main(folder: Path, scripts: list[Path]) -> None:
    """Run the scripts one after the other; PyTorch is imported once."""
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp  # noqa: F401

    gc.collect()
    for number, script in enumerate(scripts):
        scratch = folder / str(number)
        (scratch / "cwd").mkdir(parents=True)
        request = Request(str(script), str(scratch), nproc=NPROC)
        (scratch / "request.json").write_bytes(packed(request))
        _wait(scratch, _fork(scratch))


def _fork(scratch: Path) -> dict[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pids = {}
    for rank in range(NPROC):
        pid = os.fork()
        if pid == 0:
            _live(scratch, rank, port)
        pids[rank] = pid
    return pids


def _live(scratch: Path, rank: int, port: int) -> None:
    try:
        os.setsid()
        os.chdir(scratch / "cwd")
        os.environ.update(
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(NPROC),
            LOCAL_WORLD_SIZE=str(NPROC),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            GLOO_SOCKET_IFNAME="lo0" if sys.platform == "darwin" else "lo",
            FIXTURE_TMP=str(scratch / "cwd"),
        )
        sys.argv = ["bootstrap", str(scratch / "request.json")]
        bootstrap.main()
    finally:
        os._exit(70)


def _wait(scratch: Path, pids: dict[int, int]) -> None:
    deadline = time.monotonic() + LIMIT
    left = dict(pids)
    while left and time.monotonic() < deadline:
        for rank, pid in list(left.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del left[rank]
                deadline = min(deadline, time.monotonic() + ALONE)
        time.sleep(0.01)
    for pid in left.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(DUMP_TIME if left else 0)
    for pid in left.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(script) for script in sys.argv[2:]])
