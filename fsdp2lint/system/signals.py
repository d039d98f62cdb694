"""What ends a program from outside, made into exceptions: so that whatever was begun is cleaned up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Endings:
    """Signals that would end the process at once: raised as exceptions, or held while ``holding``.

    SIGINT becomes KeyboardInterrupt, others become SystemExit with the code that a shell would give. Once one
    was raised, more of them do not disturb the cleaning up. What the program ignores, as under
    ``nohup``, stays ignored. Outside of the main thread, where no signal arrives, nothing is done.
    """

    def __init__(self) -> None:
        self.holding = False
        self._held = 0
        self._raised = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Endings:
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._hear) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._held and not self._raised:
            signal.raise_signal(self._held)

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self.holding or self._raised:
            self._held = self._held or number
            return
        self._raised = True
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Raise where a signal would end the process at once; more of them do not disturb the cleaning up."""
    with Endings():
        yield
