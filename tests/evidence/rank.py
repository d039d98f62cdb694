"""The life of one rank: torchrun's environment, the script as `__main__`, a report at the end."""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import sys
import threading
import traceback
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from fsdp2lint.rehearse.demand import answer

from .full import fill_up_storage
from .slow import slow_down_saves
from .watch import Watch

_LOST_PEER = (
    "gloo/",
    "Timed out waiting",
    "timeout caused pair closure",
    "Socket Timeout",
    "wait timeout",
    "DistNetworkError",
)


@dataclass(frozen=True)
class Job:
    """A script to run: where it lies, where it works, how long it may last."""

    script: Path
    scratch: Path
    nproc: int
    timeout: float
    arguments: tuple[str, ...] = ()
    slow_saves: bool = False
    full_storage: bool = False

    @property
    def folder(self) -> Path:
        """The folder in which the script runs."""
        return self.scratch / "cwd"

    def of_rank(self, rank: int, kind: str) -> Path:
        """The file that holds a rank's `out`, `err`, `dump` or `json`, or its `pipe`."""
        return self.scratch / f"rank{rank}.{kind}"


def live(job: Job, rank: int, port: int) -> NoReturn:
    """Run the job's script as this rank and leave without the interpreter's finalisation.

    Gloo's worker threads may abort a finalising interpreter; so threads are joined and exit
    functions run as Python would, and then the process just ends.
    """
    _redirect(job, rank)
    os.environ.update(_environment(job, rank, port))
    os.chdir(job.folder)
    torch.set_num_threads(1)
    watch = Watch(job.script.parent)
    watch.install()
    if job.slow_saves:
        slow_down_saves(rank)
    if job.full_storage:
        fill_up_storage(rank)
    report = _run(job)
    for last in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        try:
            last()
        except BaseException:
            traceback.print_exc()
    report["seen"] = watch.seen()
    sys.stdout.flush()
    sys.stderr.flush()
    job.of_rank(rank, "json").write_text(json.dumps(report))
    os._exit(0 if report["outcome"] == "ended" else 1)


def hung(text: str) -> bool:
    """Whether an error text says that a peer never came to a collective."""
    return any(sign in text for sign in _LOST_PEER)


def _environment(job: Job, rank: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(job.nproc),
        "LOCAL_WORLD_SIZE": str(job.nproc),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": str(job.nproc),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "evidence",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_DIST_INIT_BARRIER": "1",  # else a rank may leave while another still connects
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        "OMP_NUM_THREADS": "1",
        "FIXTURE_TMP": str(job.folder),
    }


def _redirect(job: Job, rank: int) -> None:
    for number, kind in ((1, "out"), (2, "err")):
        target = os.open(job.of_rank(rank, kind), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(target, number)
        os.close(target)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable(sys.stderr, all_threads=True)
    answer(job.of_rank(rank, "pipe"), job.of_rank(rank, "dump").open("w"))


def _run(job: Job) -> dict[str, Any]:
    main = types.ModuleType("__main__")
    main.__file__ = str(job.script)
    sys.modules["__main__"] = main
    sys.argv = [str(job.script), *job.arguments]
    sys.path[0] = str(job.script.parent)
    try:
        code = compile(job.script.read_bytes(), str(job.script), "exec", dont_inherit=True)
        exec(code, main.__dict__)
    except SystemExit as left:
        if left.code in (None, 0):
            return {"outcome": "ended", "error": "", "where": "", "traceback": ""}
        return _failure(job, left)
    except BaseException as error:
        return _failure(job, error)
    return {"outcome": "ended", "error": "", "where": "", "traceback": ""}


def _failure(job: Job, error: BaseException) -> dict[str, Any]:
    told = "".join(traceback.format_exception(error))
    sys.stderr.write(told)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(job.script.parent)]
    return {
        "outcome": "hung" if hung(told) else "raised",
        "error": f"{type(error).__name__}: {error}",
        "where": own[-1].line if own else "",
        "traceback": told,
    }
