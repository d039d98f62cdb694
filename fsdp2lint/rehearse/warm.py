"""The process that forks ranks, seen from outside: started when a run first needs it, ended with the runs.

Ranks are forked where that is exact: on a CPU under Linux, and where every rank's strings are hashed alike, as in a run
with a seed. Elsewhere torchrun starts them.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
import uuid
from pathlib import Path

from fsdp2lint.rehearse.launch import MARK, Echo, Run, environment, launch, launched
from fsdp2lint.rehearse.outcome import Request
from fsdp2lint.rehearse.script import die_with_parent


class Gone(Exception):
    """The process that forks has ended."""


class Server:
    """A process that imports PyTorch and then forks from itself, one thing after the other."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.mark = f"forked-{uuid.uuid4()}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fsdp2lint.rehearse.forked"],
            env=variables | {MARK: self.mark},
            cwd=os.sep,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for us, who end it
            preexec_fn=die_with_parent,
        )
        self._read = b""

    @property
    def pid(self) -> int:
        """That of the process."""
        return self._process.pid

    @property
    def forks(self) -> bool:
        """Whether it is there and can fork; waits until it has imported PyTorch."""
        try:
            return bool(self.answer()["forks"])
        except Gone:
            return False

    def ask(self, *words: str) -> Child:
        """Have it fork a process for something."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as problem:
            raise Gone from problem
        return Child(self, self.answer()["pid"])

    def answer(self, timeout: float | None = None) -> dict[str, int]:
        """The next line that it answers.

        Raises:
            TimeoutError: there is none yet.
            Gone: there will be none.
        """
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._read:
            if not select.select([pipe], [], [], timeout)[0]:
                raise TimeoutError
            if not (more := os.read(pipe, 65536)):
                raise Gone
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, int] = json.loads(line)
        return answer

    def end(self) -> None:
        """End it, and with it what it has forked."""
        self._process.kill()
        self._process.communicate()


class Child:
    """A process that a server has forked, and waits for."""

    def __init__(self, server: Server, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when there is one.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            try:
                self.returncode = self._server.answer(timeout)["status"]
            except TimeoutError as late:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from late
            except Gone:
                self.returncode = 1
        return self.returncode


class Forking:
    """Runs and comparisons of tensors whose processes are forked, where they can be."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._variables: dict[str, str] = {}
        self._never = sys.platform != "linux"

    def launch(self, request: Request, echo: Echo) -> Run:
        """What ``fsdp2lint.rehearse.launch.launch`` does with torchrun."""
        started = time.monotonic()
        server = self._serving(request)
        if server is None:
            return launch(request, echo)

        def start(_: Request, folder: Path) -> Child:
            return server.ask("ranks", str(folder / "request.json"))

        run = launched(request, echo, start, (server.mark,), (server.pid,))
        run.seconds = time.monotonic() - started
        return run

    def compare(self, task: Path, out: Path) -> bool:
        """Do a task of comparing tensors; False where nothing forks, or it failed."""
        return (
            self._server is not None and not self._server.ask("compare", str(task), str(out)).wait()
        )

    def end(self) -> None:
        """End the process that forks, if there is one."""
        if self._server is not None:
            self._server.end()
            self._server = None

    def _serving(self, request: Request) -> Server | None:
        """One with the environment of a request; None where torchrun must start the ranks."""
        if self._never or request.device != "cpu" or request.seed is None:
            return None
        variables = environment(request)
        variables.pop(MARK)
        if self._server is None or variables != self._variables:
            self.end()
            self._server, self._variables = Server(variables), variables
            if not self._server.forks:
                self.end()
                self._never = True
        return self._server
