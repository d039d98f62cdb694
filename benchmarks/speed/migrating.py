"""What `check` and a dry run of `migrate` cost beside mypy: ``python benchmarks/speed/migrating.py FOLDER…`` prints a table.

Each runs in one process and without a cache, one after the other; nothing is written. mypy reads the folder as a
package, with what is installed beside it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from extremes import Cost, measured

TOOL = [sys.executable, "-m", "fsdp2lint"]
MYPY = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--cache-dir", os.devnull]


def main() -> None:
    """Print a row for each folder."""
    print(
        "| tree | check: CPU s | MiB | migrate: CPU s | MiB | times | mypy: CPU s | MiB | times |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for folder in map(Path, sys.argv[1:]):
        check = _finished([*TOOL, "check", "-q", "-j1", "--no-cache", "."], folder)
        migrate = _finished([*TOOL, "migrate", "-q", "."], folder)
        mypy = _finished([*MYPY, folder.name], folder.resolve().parent)
        cells = [f"{check.cpu:.1f} | {check.mib:.0f}"]
        cells += [
            f"{one.cpu:.1f} | {one.mib:.0f} | {one.cpu / check.cpu:.1f}" for one in (migrate, mypy)
        ]
        print(f"| {folder.name} | {' | '.join(cells)} |", flush=True)


def _finished(command: list[str], folder: Path) -> Cost:
    cost = measured(command, folder)
    assert cost.exit_code in (0, 1), f"{' '.join(command)}: exit code {cost.exit_code}"
    return cost


if __name__ == "__main__":
    main()
