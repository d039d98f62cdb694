"""Running the program as a user does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from fsdp2lint.cli.program import program as commands
from tests.support import forks

ROOT = Path(__file__).parents[2]
TOUR = ROOT / "fixtures" / "projects" / "tour"

CLEAN = """\
from torch.distributed.fsdp import fully_shard


def shard(model):
    fully_shard(model.blocks)
"""


def program(
    *args: str | Path, cwd: Path = ROOT, text: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own."""
    given = {
        k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "FORCE_", "NO_COLOR"))
    }
    given |= {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **environment}
    if hasattr(os, "fork") and not _is_read_at_the_start(environment):
        return forks.run([*map(str, args)], cwd, given, text, timeout=600)
    return subprocess.run(
        [sys.executable, "-m", "fsdp2lint", *map(str, args)],
        cwd=cwd,
        input=text,
        capture_output=True,
        text=True,
        env=given,
        timeout=600,
        check=False,
    )


def _is_read_at_the_start(environment: Iterable[str]) -> bool:
    """Whether the interpreter reads something of an environment before the program begins."""
    return any(name.startswith("PYTHON") and name != "PYTHONPATH" for name in environment)


def misconfigured(folder: Path, *args: str | Path) -> list[str]:
    """What ``check`` says of wrong settings, each with its place; all else was checked too."""
    shown = invoke("check", "-f", "json", *args, cwd=folder)
    assert (shown.returncode, shown.stderr) == (2, "")
    found = json.loads(shown.stdout)
    assert {"FSDP201", "FSDP903"} <= {one["code"] for one in found}
    wrong = [one for one in found if one["code"] == "FSDP903"]
    return [f"{one['filename']}:{one['location']['row']}: {one['message']}" for one in wrong]


def invoke(
    *args: str | Path, cwd: Path = ROOT, text: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process: faster, for what does not depend on a fresh one."""
    with _in(cwd):
        outcome = CliRunner().invoke(
            commands, [*map(str, args)], input=text, env=environment, standalone_mode=False
        )
    error, stderr = outcome.exception, outcome.stderr
    if isinstance(error, click.ClickException):
        return subprocess.CompletedProcess(
            args, 2, outcome.stdout, f"{stderr}Error: {error.format_message()}\n"
        )
    if error is not None:
        raise error
    code = outcome.return_value if isinstance(outcome.return_value, int) else 0
    return subprocess.CompletedProcess(args, code, outcome.stdout, stderr)


@contextlib.contextmanager
def _in(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
