"""The life of one rank: torchrun starts this module, it runs the script as ``__main__``.

Before the script: its output goes to files, the device stand-in and the watchers are installed. After
it: what is pending is awaited as the interpreter would, and the process leaves without finalisation,
because gloo's worker threads may abort a finalising interpreter.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib.util
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fsdp2lint.rehearse import script
from fsdp2lint.rehearse.demand import answer
from fsdp2lint.rehearse.holders import remembering
from fsdp2lint.rehearse.outcome import RankReport, Request, packed, request_from
from fsdp2lint.rehearse.stacks import raised_at
from fsdp2lint.rehearse.workfolder import protect

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
        """The file of this rank for its ``out``, ``err``, ``pid``, ``pipe``, ``dump`` or ``json``."""
        return self.folder / f"rank{self.report.rank}.{kind}"

    def write(self) -> None:
        """Write the report as it is."""
        passing = self.file("tmp")
        passing.write_bytes(packed(self.report))
        passing.replace(self.file("json"))


def main() -> NoReturn:
    """Run the script of the request that the command line names."""
    rank = Rank(request_from(Path(sys.argv[1]).read_bytes()))
    script.die_with_parent()
    _redirect(rank)
    rank.write()
    rank.file("pid").write_text(str(os.getpid()))
    script.hide_ourselves()
    from fsdp2lint.rehearse import fakes
    from fsdp2lint.rehearse.recording import Recording
    from fsdp2lint.rehearse.standin import install, install_launch

    with remembering():
        if rank.request.device == "cpu":
            install(rank.report.replaced)
        else:
            install_launch()
        fakes.make_up(rank.request.made_up, rank.report.replaced, rank.request.scratch)
        if rank.request.folder:
            protect(rank.request.folder)
        _seed(rank)
        recording = Recording(rank.report, rank.write, rank.request, EnoughSteps)
    script.add_folder(rank.request)
    try:
        for patch in rank.request.patches:
            script.call(patch)
        script.run(rank.request)
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


def _seed(rank: Rank) -> None:
    """Start all random numbers from the request's seed.

    PyTorch's generator starts from one number on all ranks, so that models that nobody seeds are the same
    on each, unless the request wants them apart; those of Python and NumPy, which make data, start from another on each.
    """
    if rank.request.seed is None:
        return
    import random

    import torch

    own = rank.request.seed + rank.report.rank
    torch.manual_seed(own if rank.request.seeds_apart else rank.request.seed)
    random.seed(own)
    if importlib.util.find_spec("numpy") is not None:
        import numpy

        numpy.random.seed(own)


def _redirect(rank: Rank) -> None:
    """Output goes to files; stacks go to another on demand, on SIGTERM and when the process dies."""
    for number, kind in ((1, "out"), (2, "err")):
        target = os.open(rank.file(kind), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(target, number)
        os.close(target)
    dump = rank.file("dump").open("w")
    faulthandler.enable(dump, all_threads=True)
    answer(rank.file("pipe"), dump)
    faulthandler.register(signal.SIGTERM, dump, all_threads=True, chain=True)


def _note_exit(report: RankReport, left: SystemExit) -> None:
    if left.code in (None, 0):
        report.how = "ended"
    else:
        _note_error(report, left)


def _note_error(report: RankReport, error: BaseException) -> None:
    text = "".join(traceback.format_exception_only(error)).strip()
    lost = any(sign in text for sign in LOST_PEER) and "gloo/transport/tcp/device.cc" not in text
    report.how = "lost" if lost else "raised"  # a device that cannot be had is of no other rank
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
