"""Scripts run on forked ranks, and what comes of them."""

from __future__ import annotations

import ast
import atexit
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from fsdp2lint.rehearse import contract
from fsdp2lint.rehearse.launch import Echo, Run, collect
from fsdp2lint.rehearse.outcome import RankReport, Request, Violation, packed
from tests.evidence.client import absent

ROOT = Path(__file__).resolve().parents[2]
STAND_INS = Path(__file__).parent / "stand_ins"
"""Packages that fixtures import and that the tests do not install."""
LIMIT = 300.0
"""Seconds that no script takes on the slowest machine; one whose ranks wait for each other is ended at once."""


Told = tuple[list[RankReport], list[Violation]]


class Server:
    """A process that has imported PyTorch and answers each line when what it asks for is done."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, line: str) -> None:
        """Ask for one thing and wait for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "over\n", "the process that forks is gone"


class Ranks:
    """A process that forks ranks for one request after the other."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def launch(self, request: Request, echo: Echo) -> Run:
        """What ``fsdp2lint.rehearse.launch`` does with torchrun."""
        folder, started = Path(request.scratch), time.monotonic()
        path = folder / "request.json"
        path.write_bytes(packed(request))
        self._server.ask(str(path))
        run = Run(seconds=time.monotonic() - started)
        for rank in range(request.nproc):
            report = collect(folder, rank, "over")
            if report is not None:
                run.ranks.append(report)
                run.errors[rank] = (folder / f"rank{rank}.err").read_text("utf-8", "replace")
        run.status = int(len(run.ranks) < request.nproc or not all(r.done for r in run.ranks))
        echo((folder / "rank0.out").read_bytes())
        return run


def runs_here(script: Path) -> bool:
    """Whether a script needs no framework itself: these ranks have a stand-in for some of ``transformers`` alone."""
    if absent(script) - {"transformers"}:
        return False
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        home = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if home.partition(".")[0] in ("lightning", "pytorch_lightning"):
            return False
        if isinstance(node, ast.ImportFrom) and home == "transformers":
            if not {alias.name for alias in node.names} <= _stood_in_for():
                return False
    return True


@cache
def _stood_in_for() -> set[str]:
    """The classes of ``transformers`` that there is a stand-in for."""
    stand_in = ast.parse((STAND_INS / "transformers" / "__init__.py").read_text("utf-8"))
    return {node.name for node in stand_in.body if isinstance(node, ast.ClassDef)}


@contextmanager
def forking(frameworks: bool = False) -> Iterator[Ranks]:
    """The process that forks ranks, of which each process of tests has one; another has imported the frameworks."""
    yield _started(frameworks)


@cache
def _started(frameworks: bool) -> Ranks:
    ended = ExitStack()
    atexit.register(ended.close)
    before = os.environ.get("PYTHONPATH")
    if frameworks:
        return Ranks(ended.enter_context(serving("forked", "frameworks", TORCHDYNAMO_DISABLE="1")))
    path = os.pathsep.join(filter(None, (str(STAND_INS), before)))
    return Ranks(ended.enter_context(serving("forked", TORCHDYNAMO_DISABLE="1", PYTHONPATH=path)))


@contextmanager
def serving(module: str, *words: str, **environment: str) -> Iterator[Server]:
    """Start one of the modules here that answer lines, and end it."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.verify.{module}", *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Server(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=600)


class Rehearsed:
    """What came of scripts, each run when it is asked for and once."""

    def __init__(self, ranks: Ranks, folder: Path, limit: float = LIMIT) -> None:
        self._ranks, self._folder, self._limit = ranks, folder, limit
        self._told: dict[Path, Told] = {}

    def __getitem__(self, script: Path) -> Told:
        """Its reports and violations."""
        if script not in self._told:
            scratch = self._folder / str(len(self._told))
            (scratch / "cwd").mkdir(parents=True)
            request = Request(
                str(script), str(scratch), timeout=self._limit, folder=str(scratch / "cwd")
            )
            run = self._ranks.launch(request, lambda _: None)
            self._told[script] = (run.ranks, contract.judge(run.ranks))
        return self._told[script]
