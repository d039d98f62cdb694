"""Units in several processes: each is analysed in one of them and comes back as plain data."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

from fsdp2lint.stored import pack, unpack

if TYPE_CHECKING:
    from fsdp2lint.declare import Rule
    from fsdp2lint.diagnostics import Report
    from fsdp2lint.plan import Unit
    from fsdp2lint.runner import Means

METHOD = "fork" if sys.platform == "linux" else "spawn"

Result = tuple["Report", dict[str, str]]
Work = Callable[["Unit"], Result]

_work: Work | None = None


def in_processes(
    work: Work, units: Sequence[Unit], means: Means, rules: Mapping[str, Rule]
) -> Iterator[Result]:
    """``work`` of each unit, in order.

    A unit whose process died, or whose files have names that are no text, is done in this one.
    """
    global _work
    _work = work
    import fsdp2lint.analysis  # noqa: F401  imported once, before the processes are made
    from fsdp2lint import knowledge

    knowledge.rules()
    context = multiprocessing.get_context(METHOD)
    given = None if METHOD == "fork" else work
    workers = min(means.jobs, len(units))
    read = means.files().read
    with ProcessPoolExecutor(workers, context, _begin, (given,)) as pool:
        pending = [(unit, pool.submit(_one, unit)) for unit in units]
        try:
            for unit, future in pending:
                try:
                    raw, seen = future.result()
                except (BrokenProcessPool, UnicodeEncodeError):
                    yield work(unit)
                    continue
                yield unpack(raw, rules, read), seen
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


def _one(unit: Unit) -> tuple[bytes, dict[str, str]]:
    assert _work is not None
    report, seen = _work(unit)
    return pack(report), seen
