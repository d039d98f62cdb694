"""Units in several processes: each is analysed in one of them and comes back as plain data."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

from fsdp2lint.check.stored import pack, unpack

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
    with ProcessPoolExecutor(workers, context, _begin, (given,)) as pool:
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


def _begin(work: Work | None) -> None:
    """Whatever a forked process knows it has from its parent; another one is told.

    An interrupt ends the process at once and without a word: its parent says what there is to say.
    """
    global _work
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if work is not None:
        _work = work


def _one(tasks: Sequence[Task]) -> tuple[list[bytes], dict[str, str]]:
    assert _work is not None
    reports, seen = _work(tasks)
    return [pack(report) for report in reports], seen
