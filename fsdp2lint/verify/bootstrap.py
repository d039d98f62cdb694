"""The life of one rank: torchrun starts this module, it runs the script as ``__main__``.

Before the script: its output goes to files, the device stand-in and the watchers are installed. After
it: what is pending is awaited as the interpreter would, and the process leaves without finalisation,
because gloo's worker threads may abort a finalising interpreter.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import importlib
import importlib.util
import os
import runpy
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fsdp2lint.verify.outcome import RankReport, Request, packed, request_from
from fsdp2lint.verify.stacks import raised_at
from fsdp2lint.verify.workfolder import protect

LOST_PEER = (
    "gloo/",
    "Timed out waiting",
    "timeout caused pair closure",
    "Socket Timeout",
    "wait timeout",
    "Connection closed by peer",
    "Connection reset by peer",
    "DistNetworkError",
    "DistStoreError",
)
"""Parts of error texts that say: another rank did not come to a collective, or left."""


class EnoughSteps(BaseException):
    """Raised in the script after the wanted number of steps; no ``except Exception`` catches it."""


class Rank:
    """One rank's report and where it is written."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.report = RankReport(int(os.environ["RANK"]))
        self.folder = Path(request.scratch)

    def file(self, kind: str) -> Path:
        """The file of this rank for its ``out``, ``err``, ``pid``, ``dump`` or ``json``."""
        return self.folder / f"rank{self.report.rank}.{kind}"

    def write(self) -> None:
        """Write the report as it stands."""
        passing = self.file("tmp")
        passing.write_bytes(packed(self.report))
        passing.replace(self.file("json"))


def main() -> NoReturn:
    """Run the script of the request that the command line names."""
    rank = Rank(request_from(Path(sys.argv[1]).read_bytes()))
    _die_with_parent()
    _redirect(rank)
    rank.write()
    rank.file("pid").write_text(str(os.getpid()))
    _hide_ourselves()
    from fsdp2lint.verify.recording import Recording
    from fsdp2lint.verify.standin import install

    if rank.request.device == "cpu":
        install(rank.report.replaced)
    if rank.request.folder:
        protect(rank.request.folder)
    _seed(rank)
    recording = Recording(rank.report, rank.write, rank.request, EnoughSteps)
    _add_folder(rank.request)
    try:
        _find_device(rank.request)
        for patch in rank.request.patches:
            _call(patch)
        _run(rank.request)
    except EnoughSteps:
        rank.report.how = "stopped"
    except SystemExit as left:
        _note_exit(rank.report, left)
    except BaseException as error:
        traceback.print_exc()
        _note_error(rank.report, error)
        recording.explain(error)
    else:
        rank.report.how = "ended"
    if rank.report.done:
        _guarded(recording.gather)
    _leave(rank, recording.end)


def _run(request: Request) -> None:
    if request.module:
        sys.argv = [request.target, *request.arguments]
        runpy.run_module(request.target, run_name="__main__", alter_sys=True)
        return
    script = os.path.abspath(request.target)
    sys.argv = [request.target, *request.arguments]
    body = types.ModuleType("__main__")
    body.__file__ = script
    sys.modules["__main__"] = body
    exec(compile(Path(script).read_bytes(), script, "exec", dont_inherit=True), body.__dict__)


def _call(patch: str) -> None:
    """Call a function named as ``module:function``."""
    module, _, function = patch.partition(":")
    getattr(importlib.import_module(module), function)()


def _add_folder(request: Request) -> None:
    if request.module:
        folder = request.root or os.getcwd()
    else:
        folder = os.path.dirname(os.path.abspath(request.target))
    sys.path.insert(0, folder)
    if request.patches and os.getcwd() != folder:
        sys.path.insert(1, os.getcwd())


def _find_device(request: Request) -> None:
    """Raises RuntimeError: GPUs are asked for and there are fewer than ranks."""
    if request.device == "cuda":
        import torch

        if torch.cuda.device_count() < request.nproc:
            found = torch.cuda.device_count()
            raise RuntimeError(f"{request.nproc} ranks need as many GPUs, {found} found")


def _seed(rank: Rank) -> None:
    """Start all random numbers from the request's seed.

    PyTorch's generator starts from the same number on every rank when a script does not seed it; those
    of Python and NumPy start from another on each.
    """
    if rank.request.seed is None:
        return
    import random

    import torch

    torch.manual_seed(rank.request.seed)
    own = rank.request.seed + rank.report.rank
    random.seed(own)
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        numpy.random.seed(own)


def _hide_ourselves() -> None:
    """Our own folder goes to the end of the path; child processes get the path that the user set."""
    package = str(Path(__file__).resolve().parents[2])
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != package] + [package]
    before = os.environ.pop("FSDP2LINT_PYTHONPATH", "")
    if before:
        os.environ["PYTHONPATH"] = before
    else:
        os.environ.pop("PYTHONPATH", None)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when torchrun dies (Linux; elsewhere nothing)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _redirect(rank: Rank) -> None:
    """Output goes to files; stacks go to another on demand, on SIGTERM and when the process dies."""
    for number, kind in ((1, "out"), (2, "err")):
        target = os.open(rank.file(kind), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(target, number)
        os.close(target)
    dump = rank.file("dump").open("w")
    faulthandler.enable(dump, all_threads=True)
    faulthandler.register(signal.SIGUSR1, dump, all_threads=True)
    faulthandler.register(signal.SIGTERM, dump, all_threads=True, chain=True)


def _note_exit(report: RankReport, left: SystemExit) -> None:
    if left.code in (None, 0):
        report.how = "ended"
    else:
        _note_error(report, left)


def _note_error(report: RankReport, error: BaseException) -> None:
    text = "".join(traceback.format_exception_only(error)).strip()
    report.how = "lost" if any(sign in text for sign in LOST_PEER) else "raised"
    report.error = text
    report.frames = raised_at(error.__traceback__)


def _leave(rank: Rank, end: Callable[[], None]) -> NoReturn:
    rank.write()
    for last in (threading._shutdown, atexit._run_exitfuncs, end):  # type: ignore[attr-defined]
        _guarded(last)
    rank.write()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0 if rank.report.done else 1)


def _guarded(last: Callable[[], None]) -> None:
    """Nothing that happens after the script may keep the process from leaving."""
    try:
        last()
    except BaseException:
        traceback.print_exc()


if __name__ == "__main__":
    main()
