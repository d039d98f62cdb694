"""Runs the program in processes that are forked from one that has imported it: half a second less for each.

``python -m tests.support.forks`` is that process. Requests and answers are lines of JSON on its stdin and stdout;
it does nothing itself but import and fork, so that each fork begins like a fresh interpreter. With ``torch`` as its
argument it has imported what ``rehearse`` imports before it forks ranks, PyTorch too: two seconds less for each piece of
code that needs it. With a path it listens there instead, for programs that talk while they run: each gets the streams
and the limits of who asks.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_ROOMS = "check cli codemods interpret meanings migrate reporters rules server".split()
"""Nothing in them imports PyTorch."""


def run(
    words: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    text: str | None,
    timeout: float,
    installed: bool = False,
) -> subprocess.CompletedProcess[str]:
    """What ``subprocess.run`` of ``python -m fsdp2lint WORDS`` gives, or of the installed ``fsdp2lint WORDS``.

    Raises:
        subprocess.TimeoutExpired: it takes longer than ``timeout`` seconds.
    """
    asked = {"words": [*words], "first": str(_ROOT if installed else cwd)}
    return _asked(_server("program"), asked, cwd, environment, text, timeout)


def snippet(
    code: str, *words: str, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What ``subprocess.run`` of ``python -c CODE WORDS`` gives, where PyTorch has been imported before."""
    asked = {"code": code, "words": [*words], "first": ""}
    given = {**os.environ, "PYTHONPATH": str(_ROOT), **environment}
    return _asked(_server("torch"), asked, cwd, given, None, timeout=600)


def _asked(
    server: _Server,
    asked: dict[str, Any],
    cwd: Path,
    environment: Mapping[str, str],
    text: str | None,
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    words = asked["words"]
    with tempfile.TemporaryDirectory(prefix="fork-") as folder:
        into, out, err = (Path(folder, name) for name in ("in", "out", "err"))
        into.write_text(text or "", "utf-8")
        request = {
            **asked,
            "cwd": str(cwd),
            "environment": dict(environment),
            "streams": [str(into), str(out), str(err)],
            "timeout": timeout,
        }
        code = server.ask(request)
        if code is None:
            raise subprocess.TimeoutExpired(words, timeout)
        said = (one.read_text("utf-8") for one in (out, err))
        return subprocess.CompletedProcess(words, code, *said)


_HIDDEN = """
import sys
sys.argv = sys.argv[1:]
with open(sys.argv[0]) as file:
    code = compile(file.read(), "<forks>", "exec")
exec(code, {"__name__": "__main__", "__file__": sys.argv[0]})
"""
"""This module without a file: ``rehearse`` takes no frame and no module of it for one of the program that it runs."""


class _Server:
    """The other end of the pipes."""

    def __init__(self, kind: str) -> None:
        start = (
            ["-c", _HIDDEN, __file__, "torch"] if kind == "torch" else ["-m", "tests.support.forks"]
        )
        self._process = subprocess.Popen(
            [sys.executable, *start],
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
        self._process.wait(timeout=60)


@lru_cache
def _server(kind: str) -> _Server:
    return _Server(kind)


_ASK = """
import json, os, resource, socket, sys
rights = -1
if os.path.exists("/proc/self/status"):
    rights = next(int(line[7:], 16) for line in open("/proc/self/status") if line.startswith("CapEff:"))
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as to:
    to.connect(sys.argv[1])
    asked = {
        "words": sys.argv[2:], "cwd": os.getcwd(), "first": os.getcwd(), "environment": dict(os.environ),
        "longest": resource.getrlimit(resource.RLIMIT_FSIZE), "rights": rights,
    }
    socket.send_fds(to, [json.dumps(asked).encode()], [0, 1, 2])
    os._exit(int(to.recv(20)))
"""


def command(*words: str) -> list[str]:
    """What to start in place of ``python -m fsdp2lint WORDS``; a signal reaches only who asks, not the program."""
    return [sys.executable, "-S", "-s", "-c", _ASK, _listener(), *words]


@lru_cache(maxsize=1)
def _listener() -> str:
    folder = tempfile.TemporaryDirectory(prefix="forks-")
    path = os.path.join(folder.name, "asked")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forks", path],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONUTF8": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()

    def close() -> None:
        process.communicate()
        folder.cleanup()

    atexit.register(close)
    return path


def _serve() -> None:
    """Fork for each request until the other end is gone; a fork leaves by itself."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")  # the forks have their own `sys.stdin`
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            requests.close()
            answers.close()
            into, out, err = request["streams"]
            new = os.O_WRONLY | os.O_CREAT
            flags = (os.O_RDONLY, new, new)
            _become(
                request,
                [os.open(p, f, 0o600) for p, f in zip((into, out, err), flags, strict=True)],
            )
            return
        answers.write(json.dumps(_code(child, request["timeout"])) + "\n")
        answers.flush()


def _listen(path: str) -> None:
    """Fork for each that connects, until the other end of stdin is gone; a fork leaves by itself."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        print("ready", flush=True)
        while listening.fileno() in select.select([listening.fileno(), 0], [], [])[0]:
            asked, _ = listening.accept()
            text, streams, *_ = socket.recv_fds(asked, 1 << 20, 3)
            if os.fork() == 0 and _is_the_program(asked, streams):
                listening.close()
                _become(json.loads(text), streams)
                return
            for one in (asked.detach(), *streams):
                os.close(one)


def _opened(number: int, mode: str) -> Any:
    """A stream as the interpreter opens it: that of the process forked from may be of another kind."""
    errors = "backslashreplace" if number == 2 else "surrogateescape"
    return open(number, mode, encoding="utf-8", errors=errors, closefd=False)


def _is_the_program(asked: socket.socket, streams: list[int]) -> bool:
    """In a fork of this fork; this one waits for it and answers with its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        asked.close()
        return True
    for one in (0, 1, 2, *streams):
        os.close(one)
    _, status = os.waitpid(child, 0)
    asked.send(str(os.waitstatus_to_exitcode(status) % 256).encode())
    os._exit(0)


def _import_all() -> None:
    for room in _ROOMS:
        package = importlib.import_module(f"fsdp2lint.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    assert "torch" not in sys.modules


def _import_torch() -> None:
    from fsdp2lint.rehearse.forked import EARLY

    for name in EARLY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


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


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """The program or a piece of code, with its own streams, folder, environment, limits and places to import from."""
    for number, opened in enumerate(streams):
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = map(_opened, range(3), "rww")
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[0] = request["first"]
    importlib.invalidate_caches()
    if "longest" in request:
        import resource

        sys.dont_write_bytecode = True  # a limit would leave half a file, for everyone
        resource.setrlimit(resource.RLIMIT_FSIZE, request["longest"])
        _keep_rights(request["rights"])
    if "code" in request:
        sys.argv = ["-c", *request["words"]]
        sys.modules["__main__"] = main_module = types.ModuleType("__main__")
        exec(compile(request["code"], "<string>", "exec"), vars(main_module))
        return
    sys.argv = [str(_ROOT / "fsdp2lint" / "__main__.py"), *request["words"]]
    from fsdp2lint.__main__ import main

    main()


def _keep_rights(rights: int) -> None:
    """Those alone that who asks has: under Linux, root may lack some of its own."""
    if rights < 0:
        return
    import ctypes

    low, high = rights & 0xFFFFFFFF, rights >> 32
    version, this_process = 0x20080522, 0  # _LINUX_CAPABILITY_VERSION_3
    kept = struct.pack("6I", low, low, 0, high, high, 0)  # effective, permitted, inheritable
    done = ctypes.CDLL(None).capset(struct.pack("Ii", version, this_process), kept)
    assert done == 0


if __name__ == "__main__":
    wanted = sys.argv[1:]
    if wanted == ["torch"]:
        _import_torch()
    else:
        _import_all()
    gc.collect()
    gc.freeze()
    if wanted in ([], ["torch"]):
        _serve()
    else:
        _listen(*wanted)
