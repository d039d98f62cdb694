"""Units in several processes: each is analysed in one of them and comes back as plain data."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from fsdp2lint.check.stored import pack, unpack
from fsdp2lint.system.signals import ENDING

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.check.context import Means
    from fsdp2lint.check.diagnostics import Report
    from fsdp2lint.check.units import Task

METHOD = "fork" if sys.platform == "linux" else "spawn"

Result = tuple[list["Report"], dict[str, str]]
Work = Callable[[Sequence["Task"]], Result]

_work: Work | None = None


def in_processes(
    work: Work, units: Sequence[Sequence[Task]], means: Means, rules: Mapping[str, Rule]
) -> Iterator[Result]:
    """``work`` of the tasks of each unit, in order.

    A unit whose process died, or whose files have names that are no text, is done in this one.
    """
    global _work
    _work = work
    import fsdp2lint.check.analysis  # noqa: F401  imported once, before the processes are made
    from fsdp2lint.catalogue import knowledge

    knowledge.rules()
    context = multiprocessing.get_context(METHOD)
    given = None if METHOD == "fork" else work
    workers = min(means.jobs, len(units))
    read = means.files().read
    with _ended_together(), ProcessPoolExecutor(workers, context, _begin, (given,)) as pool:
        with _undisturbed():
            pending = [(tasks, pool.submit(_one, tasks)) for tasks in units]
        try:
            for tasks, future in pending:
                try:
                    packed, seen = future.result()
                except (BrokenProcessPool, UnicodeEncodeError):
                    yield work(tasks)
                    continue
                yield [unpack(raw, rules, read) for raw in packed], seen
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # nobody waits for what is left


@contextmanager
def _ended_together() -> Iterator[None]:
    """What ends this process from outside ends its processes first: they would go on alone."""
    here = threading.current_thread() is threading.main_thread()
    heard = [number for number in ENDING if here and signal.getsignal(number) == signal.SIG_DFL]
    for number in heard:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _: FrameType | None) -> None:
    children = multiprocessing.active_children()
    for process in children:
        process.terminate()
    for process in children:
        process.join(1)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No signal ends this process while it makes others, of which it knows only when they are made."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(work: Work | None) -> None:
    """Whatever a forked process knows it has from its parent; another one gets it.

    A signal ends the process at once and without a word: its parent says what there is to say.
    """
    global _work
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    if work is not None:
        _work = work


def _one(tasks: Sequence[Task]) -> tuple[list[bytes], dict[str, str]]:
    assert _work is not None
    reports, seen = _work(tasks)
    return [pack(report) for report in reports], seen
