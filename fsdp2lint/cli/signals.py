"""What ends a program from outside, made into exceptions: so that whatever was begun is cleaned up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Raise where a signal would end the process at once; more of them do not disturb the cleaning up.

    SIGINT becomes KeyboardInterrupt, others become SystemExit with the code that a shell would give.
    What the program was told to ignore, as under ``nohup``, stays ignored.
    """
    heard = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _raise) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, _: FrameType | None) -> NoReturn:
    for other in _ENDING:
        signal.signal(other, signal.SIG_IGN)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)
