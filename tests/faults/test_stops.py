"""A part of :mod:`tests.faults.stops`, small enough for every run; the whole is one command there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.running import ROOT

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and signals")


@POSIX
@pytest.mark.parametrize("name", ["fix", "init", "write"])
def test_a_tree_is_before_or_after(name: str) -> None:
    """Every fifteenth stop of each way, in a process of its own: it forks."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.stops", "--quick", "15", "--only", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert ", 0 bad" in done.stdout
