"""Running the program as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOUR = ROOT / "fixtures" / "projects" / "tour"

CLEAN = """\
from torch.distributed.fsdp import fully_shard


def shard(model):
    fully_shard(model.blocks)
"""


def program(
    *args: str | Path, cwd: Path = ROOT, text: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the program in a fresh process."""
    given = {
        k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "FORCE_", "NO_COLOR"))
    }
    given |= {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **environment}
    return subprocess.run(
        [sys.executable, "-m", "fsdp2lint", *map(str, args)],
        cwd=cwd,
        input=text,
        capture_output=True,
        text=True,
        env=given,
        timeout=120,
        check=False,
    )
