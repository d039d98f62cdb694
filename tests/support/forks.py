"""Runs the program in processes that are forked from one that has imported it: half a second less for each.

``python -m tests.support.forks`` is that process. Requests and answers are lines of JSON on its stdin and stdout;
it does nothing itself but import and fork, so that each fork begins like a fresh interpreter.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_ROOMS = "check cli codemods interpret meanings migrate reporters rules".split()
"""Nothing in them imports PyTorch."""


def run(
    words: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    text: str | None,
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """What ``subprocess.run`` of ``python -m fsdp2lint WORDS`` gives.

    Raises:
        subprocess.TimeoutExpired: it takes longer than ``timeout`` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="fork-") as folder:
        into, out, err = (Path(folder, name) for name in ("in", "out", "err"))
        into.write_text(text or "", "utf-8")
        request = {
            "words": [*words],
            "cwd": str(cwd),
            "environment": dict(environment),
            "streams": [str(into), str(out), str(err)],
            "timeout": timeout,
        }
        code = _server().ask(request)
        if code is None:
            raise subprocess.TimeoutExpired([*words], timeout)
        said = (one.read_text("utf-8") for one in (out, err))
        return subprocess.CompletedProcess([*words], code, *said)


class _Server:
    """The other end of the pipes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forks"],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONUTF8": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._close)

    def ask(self, request: dict[str, Any]) -> int | None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        code: int | None = json.loads(self._process.stdout.readline())
        return code

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=10)


@lru_cache(maxsize=1)
def _server() -> _Server:
    return _Server()


def _serve() -> None:
    """Fork for each request until the other end is gone; a fork leaves by itself."""
    _import_all()
    requests = os.fdopen(os.dup(0), encoding="utf-8")  # the forks have their own `sys.stdin`
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            requests.close()
            answers.close()
            _become(request)
            return
        answers.write(json.dumps(_code(child, request["timeout"])) + "\n")
        answers.flush()


def _import_all() -> None:
    for room in _ROOMS:
        package = importlib.import_module(f"fsdp2lint.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    assert "torch" not in sys.modules
    gc.collect()
    gc.freeze()


def _code(child: int, timeout: float) -> int | None:
    """The exit code of a fork, minus the signal that ended it; None if it takes too long."""
    deadline = time.monotonic() + timeout
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.002)


def _become(request: dict[str, Any]) -> None:
    """The program, with its own streams, folder, environment and places to import from."""
    into, out, err = request["streams"]
    new = os.O_WRONLY | os.O_CREAT
    for number, (path, flags) in enumerate([(into, os.O_RDONLY), (out, new), (err, new)]):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[1:1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[0] = request["cwd"]
    importlib.invalidate_caches()
    sys.argv = [str(_ROOT / "fsdp2lint" / "__main__.py"), *request["words"]]
    from fsdp2lint.__main__ import main

    main()


if __name__ == "__main__":
    _serve()
