"""What ranks wait for when no step was made for long: reported by a thread while the run hangs.

Every rank puts the place where it is into the store at which the ranks once met, which needs no collective, and reads the others'.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from fsdp2lint.rehearse.contract import collectives
from fsdp2lint.rehearse.contract.meetings import Meetings
from fsdp2lint.rehearse.outcome import Frame, RankReport, Spot, Violation
from fsdp2lint.rehearse.stacks import collective, own_frames, stack_of, waits

GRACE = 10.0
"""Seconds that a rank waits for what the others say, and for its own thread to get a turn."""
_FILE = 2
"""Standard error, whatever stands in for it in Python: its number."""
_COUNT = itertools.count()
"""Ranks guard the same models in the same order."""


class Patience:
    """Tells where ranks wait, each time that no step was made for so many seconds."""

    def __init__(
        self, seconds: float, facts: Callable[[], Any], say: Callable[[str, Violation | None], None]
    ) -> None:
        self._seconds, self._facts, self._say = seconds, facts, say
        self._watched = threading.get_ident()
        self._closed, self._told = threading.Event(), False
        self._number = next(_COUNT)
        self._rank, self._world, self._store = _met()
        self.step()
        atexit.register(self.close)
        threading.Thread(target=self._wait, name="fsdp2lint-guard", daemon=True).start()

    def step(self) -> None:
        """A step was made: wait anew."""
        self._deadline = time.monotonic() + self._seconds
        # only for a call that keeps the interpreter's lock: the timer reads stacks without the lock,
        # and dies where one changes meanwhile
        faulthandler.dump_traceback_later(self._seconds + GRACE, file=_FILE)
        if self._told:
            self._told = False
            with contextlib.suppress(Exception):  # a store of any kind, which may be gone
                self._store.delete_key(self._key(self._rank))

    def close(self) -> None:
        """Wait no more; the other ranks learn of it."""
        atexit.unregister(self.close)
        faulthandler.cancel_dump_traceback_later()
        self._closed.set()
        self._put({"how": "ended"})

    def _wait(self) -> None:
        while not self._closed.wait(max(self._deadline - time.monotonic(), 0.1)):
            if time.monotonic() >= self._deadline and not self._told:
                self._told = True
                self._tell()

    def _tell(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        os.write(_FILE, f"no step for {self._seconds:g} s, rank {self._rank} is here:\n".encode())
        faulthandler.dump_traceback(_FILE, all_threads=True)
        stack = stack_of(sys._current_frames().get(self._watched))
        frames = own_frames(stack)
        mine = {
            "how": "hung" if waits(stack) else "busy",
            "frames": [[frame.at.file, frame.at.line, frame.function] for frame in frames],
            "waits_in": collective(stack),
            "facts": self._facts(),
        }
        self._put(mine)
        said = [mine if n == self._rank else self._get(n) for n in range(self._world)]
        text, violation = reported([_report(n, one) for n, one in enumerate(said)], self._seconds)
        if not self._closed.is_set() and self._told:
            self._say(text, violation)

    def _key(self, rank: int) -> str:
        return f"fsdp2lint/guard/{self._number}/{rank}"

    def _put(self, said: dict[str, Any]) -> None:
        with contextlib.suppress(Exception):
            self._store.set(self._key(self._rank), json.dumps(said))

    def _get(self, rank: int) -> dict[str, Any]:
        """What another rank says; where it does not, that."""
        key, until = self._key(rank), time.monotonic() + GRACE
        with contextlib.suppress(Exception):
            while not self._store.check([key]) and time.monotonic() < until:
                time.sleep(0.1)
            if self._store.check([key]):
                said: dict[str, Any] = json.loads(self._store.get(key))
                return said
        return {"how": "running"}


def reported(ranks: Sequence[RankReport], seconds: float) -> tuple[str, Violation | None]:
    """Where each rank is, and the rule that it breaks, where that is certain."""
    places = "; ".join(map(_place, ranks))
    return f"no step for {seconds:g} s: {places}", next(iter(_causes(ranks)), None)


def _causes(ranks: Sequence[RankReport]) -> list[Violation]:
    if any(rank.how == "running" for rank in ranks):
        return []  # who says nothing may be on the way
    found = list(collectives.across(ranks))
    if not found and all(rank.how == "hung" for rank in ranks):
        # all wait at one line, in backward: then those that reduced fewer gradients lack them
        lines = {tuple(frame.at for frame in rank.frames) for rank in ranks}
        facts = [rank.facts.get("meetings") or {} for rank in ranks]
        found = list(Meetings.across(facts)) if len(lines) == 1 else []
    return found


def _place(rank: RankReport) -> str:
    if rank.how == "running":
        return f"rank {rank.rank} does not answer"
    if rank.how == "ended":
        return f"rank {rank.rank} has left the training"
    at = rank.frames[-1].at if rank.frames else None
    where = f" at {at.file}:{at.line}" if at else ""
    if rank.how == "busy":
        return f"rank {rank.rank} is{where}"
    return f"rank {rank.rank} waits in {rank.waits_in or 'a collective'}{where}"


def _report(rank: int, said: dict[str, Any]) -> RankReport:
    frames = [Frame(Spot(file, line), name) for file, line, name in said.get("frames", ())]
    facts = {"meetings": said.get("facts")}
    return RankReport(rank, said["how"], "", frames, said.get("waits_in", ""), facts=facts)


def _met() -> tuple[int, int, Any]:
    """This rank, how many there are, and the store at which they met; alone where they did not."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return 0, 1, None
    store: Any = dist.distributed_c10d._get_default_store()
    with contextlib.suppress(Exception):  # one connection serves one question at a time
        store = store.clone()
    return dist.get_rank(), dist.get_world_size(), store
