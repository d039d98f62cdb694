"""A run whose time is over when a test says so, not when a slow machine has taken too long for it.

``python -m tests.support.over FILE WORDS`` is the program, whose runs are out of time as soon as there is the file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsdp2lint.rehearse import launch
from fsdp2lint.rehearse.outcome import Request

_watch = launch._watch


def when(happened: Callable[[], bool]) -> Callable[..., launch.Verdict]:
    """What watches ranks in place of ``launch._watch``."""

    class Until:
        def __init__(self, request: Request) -> None:
            self.nproc = request.nproc

        @property
        def timeout(self) -> float:
            return 0.0 if happened() else 600.0

    def watch(agent: Any, request: Request, *rest: Any) -> launch.Verdict:
        until: Any = Until(request)
        return _watch(agent, until, *rest)

    return watch


if __name__ == "__main__":
    from fsdp2lint.__main__ import main

    _, file, *words = sys.argv
    sys.argv = ["fsdp2lint", *words]
    launch._watch = when(Path(file).exists)
    main()
