"""Fixtures run on forked ranks, and what the contract says of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fsdp2lint.verify import contract
from fsdp2lint.verify.launch import collect
from fsdp2lint.verify.outcome import RankReport, Violation

ROOT = Path(__file__).resolve().parents[2]


def rehearsed(
    scripts: Sequence[Path], folder: Path
) -> list[tuple[list[RankReport], list[Violation]]]:
    """Reports and violations of each script, in order."""
    command = [sys.executable, "-m", "tests.verify.forked", str(folder), *map(str, scripts)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    told = []
    for number in range(len(scripts)):
        found = [collect(folder / str(number), rank, "over") for rank in range(2)]
        ranks = [rank for rank in found if rank is not None]
        told.append((ranks, contract.judge(ranks)))
    return told
