"""Faults of a run, planted one at a time in a correct program, and how many of them `rehearse` names.

    python benchmarks/proof/faults.py [NAME …]

The program as it is must be silent, and no process may be left of any run. A fault is named when the report has the words that
belong to it: the rule and the rank, or who waits where.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from fsdp2lint.rehearse.warm import Forking  # noqa: E402
from tests.verify.faulty import FAULTS, PROGRAM, changed, is_named, report  # noqa: E402


def left(mark: str) -> list[int]:
    """Processes that carry a mark in their environment and live."""
    wanted = mark.encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            alive = (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            if alive and wanted in (process / "environ").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def main() -> int:
    """Run the program and its faults, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names or list(FAULTS)
    mark = f"FAULTS={os.getpid()}-{time.time_ns()}"
    os.environ["FAULTS"] = mark.partition("=")[2]
    forking = Forking()
    missed = []
    try:
        said, seconds = report(forking, PROGRAM)
        silent = said.rstrip().endswith("Nothing broke the contract.") and "warning[" not in said
        print(f"{'the program as it is':48} {'silent' if silent else 'NOT SILENT'} {seconds:6.1f} s", flush=True)  # fmt: skip
        if not silent:
            missed.append(said)
        for name in names:
            said, seconds = report(forking, changed(name), FAULTS[name].stays)
            named = is_named(name, said)
            print(f"{name:48} {'named ' if named else 'MISSED'} {seconds:6.1f} s", flush=True)
            if not named:
                missed.append(f"{name}\n{said}")
    finally:
        forking.end()
    for one in missed:
        print(f"\n--- {one}")
    alive = left(mark)
    others = [pid for pid in alive if pid != os.getpid()]
    print(f"\n{len(names)} faults, {len(missed)} not as wanted, {len(others)} processes left")
    return int(bool(missed or others))


if __name__ == "__main__":
    sys.exit(main())
