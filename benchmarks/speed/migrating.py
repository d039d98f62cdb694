"""What a dry run of `migrate` costs beside `check`: ``python benchmarks/speed/migrating.py FOLDER…`` prints a table.

Both run in one process and without a cache, one after the other; nothing is written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from extremes import measured


def main() -> None:
    """Print a row for each folder."""
    print("| tree | check: CPU s | MiB | migrate: CPU s | MiB | times |")
    print("|---|---|---|---|---|---|")
    for folder in map(Path, sys.argv[1:]):
        tool = [sys.executable, "-m", "fsdp2lint"]
        check = measured([*tool, "check", "-q", "-j1", "--no-cache", "."], folder)
        migrate = measured([*tool, "migrate", "-q", "."], folder)
        for cost in (check, migrate):
            assert cost.exit_code in (0, 1), f"{folder}: exit code {cost.exit_code}"
        cells = f"{check.cpu:.1f} | {check.mib:.0f} | {migrate.cpu:.1f} | {migrate.mib:.0f}"
        print(f"| {folder.name} | {cells} | {migrate.cpu / check.cpu:.1f} |", flush=True)


if __name__ == "__main__":
    main()
