"""How fast fsdp2lint is, beside ruff, TorchFix and grep on the same files: each ratio with its target.

python benchmarks/speed/compare.py [--tree NAME=FOLDER] [--torchfix PROGRAM] [--only GROUP …]

No test runs any of it: time is measured on a machine that is left alone, not in CI.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from clocks import Pair, in_turns, peak_memory
from rows import Bench, Row
from trees import WHEELS, trees

GROUPS = ("trees", "files", "inside", "warm", "memory")
MOST_MEMORY = 200
"""MiB."""


def main() -> None:
    """Measure and print."""
    asked = _arguments()
    given = dict(pair.split("=", 1) for pair in asked.tree)
    found = trees({name: Path(path) for name, path in given.items()}, asked.cache)
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(found, Path(work), asked.torchfix)
        print(
            "| what | against | ours | theirs | ratio | target | |\n|---|---|---|---|---|---|---|"
        )
        for row in bench.rows():
            if row.group in asked.only:
                print(_line(row, in_turns(row.ours, row.theirs, asked.rounds)), flush=True)
        if "memory" in asked.only:
            for what, command in bench.commands().items():
                print(_memory_line(what, peak_memory(command)), flush=True)


def _line(row: Row, pair: Pair) -> str:
    ours, theirs = pair.medians
    ratio = 1 / pair.ratio if row.faster else pair.ratio
    target, verdict = "", ""
    if row.target is not None:
        target = f"{'≥' if row.faster else '≤'} {row.target:g}"
        verdict = _verdict(ratio >= row.target if row.faster else ratio <= row.target)
    cells = (row.what, row.against, f"{ours:.3f} s", f"{theirs:.3f} s", f"{ratio:.2f}", target)
    return f"| {' | '.join(cells)} | {verdict} |"


def _memory_line(what: str, mebibytes: float) -> str:
    verdict = _verdict(mebibytes <= MOST_MEMORY)
    return f"| peak memory: {what} | | {mebibytes:.0f} MiB | | | ≤ {MOST_MEMORY} | {verdict} |"


def _verdict(met: bool) -> str:
    return "ok" if met else "miss"


def _arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tree", action="append", default=[], metavar="NAME=FOLDER",
        help=f"a checkout in place of the wheel of PyPI; names: {', '.join(WHEELS)}",
    )  # fmt: skip
    parser.add_argument("--cache", type=Path, default=Path("build/benchmarks"), metavar="FOLDER")
    parser.add_argument(
        "--torchfix",
        type=Path,
        metavar="PROGRAM",
        help="TorchFix 0.7, in an environment of its own",
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
