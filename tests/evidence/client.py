"""Runs scripts on ranks through a fork server that each test process starts once."""

from __future__ import annotations

import atexit
import json
import os
import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from .results import RankResult, Run, run_from

_ROOT = Path(__file__).resolve().parents[2]
_FRAMEWORK = re.compile(
    r"^\s*(?:from|import) (accelerate|lightning|peft|pytorch_lightning|transformers|trl)\b", re.M
)

LIMIT = 300.0
"""Seconds that no script takes on the slowest machine; one whose ranks wait for each other is ended at once."""


def run_script(path: Path, *, nproc: int = 2, timeout: float = LIMIT) -> list[RankResult]:
    """Run a script on `nproc` CPU ranks as torchrun would; one result per rank, in order."""
    with tempfile.TemporaryDirectory(prefix="evidence-") as scratch:
        return run(path, Path(scratch), nproc=nproc, timeout=timeout).ranks


def run(
    path: Path,
    scratch: Path,
    *,
    nproc: int = 2,
    timeout: float = LIMIT,
    arguments: tuple[str, ...] = (),
    slow_saves: bool = False,
    full_storage: bool = False,
) -> Run:
    """Run a script in a folder inside `scratch` and look at what it left there.

    `slow_saves` holds back saves in background threads, see `slow`; with `full_storage` the second
    save cannot be finished, see `full`.
    """
    if lacking := absent(path):
        pytest.skip(f"{', '.join(sorted(lacking))} not installed")
    scratch.mkdir(parents=True, exist_ok=True)
    request = {
        "script": str(path.resolve()),
        "scratch": str(scratch.resolve()),
        "nproc": nproc,
        "timeout": timeout,
        "arguments": arguments,
        "slow_saves": slow_saves,
        "full_storage": full_storage,
    }
    _server(_uses_framework(path)).ask(request)
    return run_from(path, json.loads((scratch / "result.json").read_text()))


def _uses_framework(script: Path) -> bool:
    return bool(_frameworks(script))


def absent(script: Path) -> set[str]:
    """The frameworks that a script imports and that are not installed, as beside another release of PyTorch."""
    return {name for name in _frameworks(script) if find_spec(name) is None}


def _frameworks(script: Path) -> set[str]:
    """What a script, or a file beside a script that is entered at its `main.py`, imports of them."""
    files = script.parent.rglob("*.py") if script.name == "main.py" else [script]
    return {name for file in files for name in _FRAMEWORK.findall(file.read_text("utf-8"))}


class ForkServer:
    """The other end of the pipe to `tests.evidence.server`; ranks of frameworks wait for no import."""

    def __init__(self, frameworks: bool) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.evidence.server", *["frameworks"] * frameworks],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def ask(self, request: dict[str, object]) -> None:
        """Send one scenario and wait until it is over."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            raise RuntimeError("the fork server is gone")

    def close(self) -> None:
        """Stop the server; scenarios die with it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait(timeout=60)


@lru_cache(maxsize=2)
def _server(frameworks: bool) -> ForkServer:
    return ForkServer(frameworks)
