"""A few minutes of :mod:`tests.faults.fuzz` at most; the whole is one command there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.faults.fuzz import LAWS
from tests.support.running import ROOT

INPUTS = int(os.environ.get("FSDP2LINT_FUZZ", "0"))
"""How many of each kind; CI asks for some in a step of its own."""


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals and limits")
@pytest.mark.skipif(not INPUTS, reason="FSDP2LINT_FUZZ is not set")
@pytest.mark.parametrize("law", LAWS)
def test_no_input_breaks_a_promise(law: str) -> None:
    words = [
        "--only",
        law,
        "--inputs",
        str(INPUTS if law == "check" else INPUTS * 5),
        "--jobs",
        "1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.fuzz", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert " 0 broken laws" in done.stdout
