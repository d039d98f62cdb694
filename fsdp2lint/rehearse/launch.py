"""Starts the ranks on our bootstrap, watches them from outside, and leaves no process behind.

torchrun starts them, or a process that forks them (:mod:`fsdp2lint.rehearse.warm`). torchrun gives every rank a session of its own, so killing torchrun's process group is not enough: each
rank writes down its process id, and its whole group is killed. A deadlock is recognised without waiting
for a timeout: no rank uses the processor any more and every one waits inside ``torch.distributed``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from fsdp2lint.rehearse.contract.meetings import read
from fsdp2lint.rehearse.demand import ANSWERED, ask
from fsdp2lint.rehearse.outcome import Frame, RankReport, Request, packed, report_from
from fsdp2lint.rehearse.script import die_with_parent
from fsdp2lint.rehearse.stacks import collective, main_thread, own_frames, waits

PAUSE = 0.05
IDLE = 6.0
"""Seconds without any work before the stacks of the ranks are looked at."""
LAZY_TICKS = 5
"""Clock ticks of work in that time that count as none."""
WORK_TIME = 0.5
"""Seconds in which a rank that works shows it."""
BUSY_TICKS = 3
"""Clock ticks in that time that are more than the writing of stacks takes."""
BURIAL = 5.0
LOG = "torchrun.log"
"""What the agent itself prints."""

MARK = "FSDP2LINT_RUN"
"""A variable that what a run starts inherits, also a process in a session of its own; it holds the run's folder."""

Verdict = Literal["over", "timeout", "deadlock"]
Echo = Callable[[bytes], None]


@dataclass
class Run:
    """What came of a launch; a rank that never started has no report."""

    verdict: Verdict = "over"
    ranks: list[RankReport] = field(default_factory=list)
    status: int = 0
    """The exit status of torchrun."""
    noise: str = ""
    """What torchrun itself printed."""
    errors: dict[int, str] = field(default_factory=dict)
    """Standard error of each rank."""
    seconds: float = 0.0
    stalled: str = ""
    """Which ranks waited for a rank that was at work, when that was first seen."""


Launch = Callable[[Request, Echo], Run]


class Agent(Protocol):
    """The process that starts the ranks and waits for them, in a process group of its own: torchrun, or ours."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None:
        """The exit status; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when there is one.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """


Start = Callable[[Request, Path], Agent]


def launch(request: Request, echo: Echo) -> Run:
    """Run the script of a request under torchrun; ``echo`` gets the output of rank 0 as it comes.

    Raises:
        KeyboardInterrupt: after every process was ended.
    """
    return launched(request, echo, _start)


def launched(
    request: Request,
    echo: Echo,
    start: Start,
    marks: Collection[str] = (),
    spared: Collection[int] = (),
) -> Run:
    """Run the script of a request on the ranks that ``start`` starts.

    What is left of the run carries one of these ``marks`` in its environment; the ``spared`` live on.

    Raises:
        KeyboardInterrupt: after every process was ended.
    """
    folder = Path(request.scratch)
    (folder / "request.json").write_bytes(packed(request))
    started = time.monotonic()
    run = Run()
    busy: set[int] = set()
    agent = start(request, folder)
    try:
        run.verdict = _watch(agent, request, folder, echo, run, started)
    finally:
        if agent.poll() is None:
            busy = _still_busy(folder, request)
        _end(agent, folder, request.nproc)
        _kill_marked((str(folder), *marks), spared)
    run.status = agent.wait()
    run.seconds = time.monotonic() - started
    run.noise = (folder / LOG).read_text("utf-8", "replace")
    for rank in range(request.nproc):
        if (report := collect(folder, rank, run.verdict, busy)) is not None:
            run.ranks.append(report)
            run.errors[rank] = _of(folder, rank, "err").read_text("utf-8", "replace")
    return run


def _start(request: Request, folder: Path) -> subprocess.Popen[bytes]:
    # fmt: off
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
        "--nproc-per-node", str(request.nproc), "--max-restarts", "0",
        "--log-dir", str(folder),  # by default it leaves a temporary folder behind
        "-m", "fsdp2lint.rehearse.bootstrap", str(folder / "request.json"),
    ]
    # fmt: on
    with (folder / LOG).open("wb") as log:
        return subprocess.Popen(
            command,
            env=environment(request),
            cwd=request.folder or None,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )


def environment(request: Request) -> dict[str, str]:
    """Ours, such that the ranks find this package, see no accelerator and talk over loopback."""
    package = str(Path(__file__).resolve().parents[2])
    before = os.environ.get("PYTHONPATH")
    found = {
        "PYTHONPATH": os.pathsep.join(filter(None, (package, before))),
        "FSDP2LINT_PYTHONPATH": before or "",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "HYDRA_FULL_ERROR": "1",  # it would print what was raised, and exit
        MARK: request.scratch,
    }
    if request.device == "cpu":
        found |= {
            "CUDA_VISIBLE_DEVICES": "",
            "TORCHDYNAMO_DISABLE": "1",
            "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        }
    if request.seed is not None:
        found["PYTHONHASHSEED"] = str(request.seed)
    return os.environ | request.environment | found


def _watch(
    agent: Agent,
    request: Request,
    folder: Path,
    echo: Echo,
    run: Run,
    started: float,
) -> Verdict:
    tails = [_Tail(_of(folder, 0, kind), echo) for kind in ("out", "err")]
    idle, stall = _Idle(folder, request.nproc), _Stall(folder, request.nproc)
    try:
        while agent.poll() is None:
            for tail in tails:
                tail.follow()
            if time.monotonic() - started > request.timeout:
                return "timeout"
            if not run.stalled and (text := stall.seen()):
                run.stalled = text
                echo(f"fsdp2lint: {text}\n".encode())
            if idle.for_long() and _all_wait(folder, request.nproc):
                return "deadlock"
            time.sleep(PAUSE)
    finally:
        for tail in tails:
            tail.follow()
    return "over"


class _Tail:
    """Hands out what was written to a file since the last look."""

    def __init__(self, path: Path, echo: Echo) -> None:
        self._path, self._echo, self._read = path, echo, 0

    def follow(self) -> None:
        if self._path.exists() and self._path.stat().st_size > self._read:
            with self._path.open("rb") as stream:
                stream.seek(self._read)
                new = stream.read()
            self._read += len(new)
            self._echo(new)


class _Idle:
    """Whether the ranks have done nothing for a while; never, where there is no ``/proc``."""

    def __init__(self, folder: Path, nproc: int) -> None:
        self._folder, self._nproc = folder, nproc
        self._work, self._since = -1, time.monotonic()

    def for_long(self) -> bool:
        """True at most once in :data:`IDLE` seconds."""
        pids = _pids(self._folder, self._nproc)
        try:
            work = sum(_work(pid) for pid in pids.values())
        except OSError:
            work = -1
        if not pids or work < 0 or work < self._work or work - self._work > LAZY_TICKS:
            self._work, self._since = work, time.monotonic()
            return False
        if time.monotonic() - self._since < IDLE:
            return False
        self._since = time.monotonic()
        return True


class _Stall:
    """Whether some ranks wait in a collective while others work on or are still elsewhere.

    That may be a loop without end, a long computation, or data that do not come.
    """

    def __init__(self, folder: Path, nproc: int) -> None:
        self._folder, self._nproc = folder, nproc
        self._seen: dict[int, tuple[int, float]] = {}

    def seen(self) -> str:
        """Who waits where, and who works where; empty while that is not so."""
        pids = _pids(self._folder, self._nproc)
        now = time.monotonic()
        for rank, pid in pids.items():
            work, _ = self._seen.get(rank, (-LAZY_TICKS - 1, now))
            if (used := _work_now(pid)) - work > LAZY_TICKS:
                self._seen[rank] = used, now
        idle = {rank for rank in pids if now - self._seen[rank][1] >= IDLE}
        if not idle or len(pids) < self._nproc:
            return ""
        busy = _busy_while_asked(self._folder, pids)
        for rank in idle:
            self._seen[rank] = self._seen[rank][0], now  # look again only after as long a time
        stacks = {rank: _dumped(self._folder, rank) for rank in pids}
        reports = {rank: _reported(self._folder, rank) for rank in pids}
        running = [
            n for n, report in reports.items() if report is not None and report.how == "running"
        ]
        waiting = [rank for rank in running if rank in idle and waits(stacks[rank])]
        elsewhere = [rank for rank in running if not waits(stacks[rank])]
        if not waiting or not elsewhere:
            return ""
        first = ", ".join(_place(rank, "waits", stacks[rank]) for rank in waiting)
        others = ", ".join(
            _place(rank, "works" if rank in busy else "does nothing", stacks[rank])
            for rank in elsewhere
        )
        return f"for {IDLE:.0f} s {first}, while {others}"


def _place(rank: int, how: str, stack: list[Frame]) -> str:
    frames = own_frames(stack)
    inside = f" in {called}" if how == "waits" and (called := collective(stack)) else ""
    at = f" at {frames[-1].at.file}:{frames[-1].at.line}" if frames else ""
    return f"rank {rank} {how}{inside}{at}"


def _work(pid: int) -> int:
    """Clock ticks that a process has used; -1 when it is not to be seen (``proc(5)``)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return 0 if Path("/proc/self/stat").exists() else -1
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _all_wait(folder: Path, nproc: int) -> bool:
    """Whether every rank that is still in the script waits for others."""
    pids = _pids(folder, nproc)
    if len(pids) < nproc:
        return False
    ask(pids, partial(_of, folder))
    waiting = 0
    for rank in range(nproc):
        report = _reported(folder, rank)
        if report is not None and report.how != "running":
            continue
        if not waits(_dumped(folder, rank)) or _is_ready(pids[rank]):
            return False
        waiting += 1
    return waiting > 0


def _still_busy(folder: Path, request: Request) -> set[int]:
    """The ranks that go on working while all write down their stacks; NCCL also works while it waits."""
    busy = _busy_while_asked(folder, _pids(folder, request.nproc))
    return busy if request.device == "cpu" else set()


def _busy_while_asked(folder: Path, pids: dict[int, int]) -> set[int]:
    """The ranks that do more than write down their stacks, which all are asked for, or would if others left them a core."""
    before = {rank: _work_now(pid) for rank, pid in pids.items()}
    ready = {rank for rank, pid in pids.items() if _is_ready(pid)}
    ask(pids, partial(_of, folder))
    time.sleep(WORK_TIME)
    return {
        rank
        for rank, pid in pids.items()
        if _work_now(pid) - before[rank] > BUSY_TICKS or (rank in ready and _is_ready(pid))
    }


def _is_ready(pid: int) -> bool:
    """Whether the main thread of a process runs, or waits for nothing but a core (``proc(5)``)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    except (OSError, IndexError):
        return False


def _work_now(pid: int) -> int:
    try:
        return _work(pid)
    except OSError:
        return -1


def _end(agent: Agent, folder: Path, nproc: int) -> None:
    """Kill the ranks that are left, and what they have started; their agent buries them and goes, or is killed too."""
    started = _below({agent.pid, *_pids(folder, nproc).values()}) - {agent.pid}
    for pid in _pids(folder, nproc).values():
        _kill_group(pid)
    _kill(started)
    try:
        agent.wait(BURIAL if _pids(folder, nproc) else 0)
    except subprocess.TimeoutExpired:
        _kill_group(agent.pid)
        for pid in _pids(folder, nproc).values():
            _kill_group(pid)
    agent.wait()


def _kill_marked(marks: Collection[str], spared: Collection[int]) -> None:
    """Kill what is left of a run, wherever it has gone; only where there is ``/proc``."""
    wanted = {f"{MARK}={mark}".encode() for mark in marks}
    for _ in range(10):  # one that is being killed may start another
        left = {pid for pid in _every_pid() if not wanted.isdisjoint(_variables(pid))} - {*spared}
        if not left:
            return
        _kill(left)
        time.sleep(PAUSE)


def _kill(pids: Collection[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _below(pids: Collection[int]) -> set[int]:
    """These processes and those that they have started, as far as each is still known to its parent."""
    parents = {pid: _parent(pid) for pid in _every_pid()}
    found, more = set(pids), set(pids)
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found
        found |= more
    return found


def _every_pid() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return -1


def _variables(pid: int) -> list[bytes]:
    """The environment with which a process began; a zombie has none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _pids(folder: Path, nproc: int) -> dict[int, int]:
    found = {}
    for rank in range(nproc):
        with contextlib.suppress(OSError, ValueError):
            found[rank] = int(_of(folder, rank, "pid").read_text())
    return found


def collect(
    folder: Path, rank: int, verdict: Verdict, busy: Collection[int] = ()
) -> RankReport | None:
    """The report of a rank, with its last stack when it could not end it itself.

    ``busy`` are the ranks that worked until they were killed.
    """
    report = _reported(folder, rank)
    if report is not None:
        report.meetings = read(_of(folder, rank, "meetings"))
    if report is None or report.how != "running":
        return report
    stack = _dumped(folder, rank)
    report.frames = own_frames(stack)
    if rank in busy:
        report.how = "busy"
        return report
    report.waits_in = collective(stack)
    if crash := _crash(folder, rank):
        report.how, report.error = "died", _CRASHES.get(crash, "")
    elif verdict != "over" or waits(stack):
        report.how = "hung"
    else:  # one that was told to end, because another had failed, has written down its stacks
        report.how = "lost" if stack else "died"
    return report


def _crash(folder: Path, rank: int) -> str:
    """What ended the process from outside of Python; empty when nothing did."""
    text = _of(folder, rank, "dump").read_text("utf-8", "replace")
    return text.partition("Fatal Python error: ")[2].partition("\n")[0]


_CRASHES = {
    "Bus error": "Bus error: a file was written over that is still mapped into memory, as `torch.load(…, mmap=True)` leaves "
    "what is not copied (`step` of an optimizer's state): write to another name, then `os.replace` it"
}
"""What is known of some of them."""


def _reported(folder: Path, rank: int) -> RankReport | None:
    try:
        return report_from(_of(folder, rank, "json").read_bytes())
    except FileNotFoundError:
        return None


def _dumped(folder: Path, rank: int) -> list[Frame]:
    """The last whole stack: a rank may be killed while it writes down another one."""
    try:
        text = _of(folder, rank, "dump").read_text("utf-8", "replace")
    except FileNotFoundError:
        return []
    whole, _, begun = text.rpartition(ANSWERED)
    stacks = [main_thread(begun), main_thread(whole)]
    return next(filter(own_frames, stacks), None) or next(filter(None, stacks), [])


def _of(folder: Path, rank: int, kind: str) -> Path:
    return folder / f"rank{rank}.{kind}"
