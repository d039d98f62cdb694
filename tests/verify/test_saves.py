"""The checkpoints that a rank notes as it writes them."""

from __future__ import annotations

from pathlib import Path

from tests.support import forks

SCRIPT = """
import os, sys
from pathlib import Path
import torch
from fsdp2lint.rehearse.recording.saves import Saves

saved = []
Saves(saved, lambda: 3, os.getcwd()).install()
torch.save({"x": 1}, "first.tmp")
os.replace("first.tmp", "first.pt")
Path("half").mkdir()
torch.save({"x": 1}, "half/second.pt")
Path("half").rename("whole")
torch.save({"x": 2}, "again.tmp")
Path("again.tmp").replace("first.pt")
os.rename("whole", "last")
for one in saved:
    print(os.path.relpath(one.path), one.step, one.kind)
"""


def test_a_file_that_is_renamed_is_the_checkpoint(tmp_path: Path) -> None:
    """Written under another name first, so that nobody reads half of it."""
    done = forks.snippet(SCRIPT, cwd=tmp_path)
    assert done.stdout.split("\n") == ["first.pt 3 torch", "last/second.pt 3 torch", ""], (
        done.stdout + done.stderr
    )
