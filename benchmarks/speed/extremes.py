"""What `check` costs on trees of unusual size: ``python benchmarks/speed/extremes.py`` prints a table.

50,000 files, one file of 10 MB, a thousand folders one in another, and the packages that stand beside this Python
(torch among them, where it is installed). ``--files N`` makes the first tree smaller, ``--only NAME`` measures one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from scripts import PLAIN, script

ONE_OF = 500
"""Of so many files one trains with FSDP."""


class Cost(NamedTuple):
    """What a command took."""

    wall: float
    cpu: float
    mib: float
    exit_code: int


def many(folder: Path, count: int) -> None:
    """Many files in folders of a hundred."""
    for number in range(count):
        file = folder / f"part{number // 100}" / f"module{number}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(script(60) if number % ONE_OF == 0 else PLAIN)


def long(folder: Path, _: int) -> None:
    """One file of 10 MB, and a script beside it that imports it."""
    line = "x = fully_shard  # what a generator writes\n"
    (folder / "generated.py").write_text(
        "from torch.distributed.fsdp import fully_shard\n" + line * (10_000_000 // len(line))
    )
    (folder / "train.py").write_text("import generated\n" + script(60))


def deep(folder: Path, _: int) -> None:
    """A thousand folders, each in the one before, with a script in the last; the path is longer than most systems take."""
    here = os.open(folder, os.O_RDONLY)
    for _level in range(1_000):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    handle = os.open("train.py", os.O_WRONLY | os.O_CREAT, dir_fd=here)
    os.write(handle, script(60).encode())
    os.close(handle)
    os.close(here)
    (folder / "train.py").write_text(script(60))


TREES: dict[str, tuple[str, Callable[[Path, int], None] | None]] = {
    "many": ("{files:,} files, one in 500 trains with FSDP", many),
    "long": ("one file of 10 MB", long),
    "deep": ("1,000 folders, one in another", deep),
    "packages": ("site-packages with torch: {files:,} files", None),
}


def measured(command: list[str], folder: Path) -> Cost:
    """Run a command, in a process of its own, and its children."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    scale = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return Cost(
        time.monotonic() - began,
        used.ru_utime + used.ru_stime,
        used.ru_maxrss / scale,
        process.returncode,
    )


def main() -> None:
    """Print a row for each tree, without a cache and with one that knows it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=TREES, action="append")
    given = parser.parse_args()
    print("| tree | wall s | CPU s | MiB | again: wall s | CPU s | MiB |")
    print("|---|---|---|---|---|---|---|")
    for name in given.only or TREES:
        with tempfile.TemporaryDirectory(prefix="fsdp2lint-extremes-") as work:
            folder, words = Path(work) / "tree", ["."]
            folder.mkdir()
            title, make = TREES[name]
            files = given.files
            if make is None:
                words = ["--no-respect-gitignore", "--exclude", "", sysconfig.get_path("purelib")]
                files = sum(1 for _ in Path(words[-1]).rglob("*.py"))
            else:
                make(folder, given.files)
            command = [sys.executable, "-m", "fsdp2lint", "check", "-q", f"-j{given.jobs}"]
            command += ["--cache-dir", str(Path(work) / "cache"), *words]
            cells = []
            for cost in (measured(command, folder), measured(command, folder)):
                assert cost.exit_code in (0, 1), f"{name}: exit code {cost.exit_code}"
                cells += [f"{cost.wall:.1f}", f"{cost.cpu:.1f}", f"{cost.mib:.0f}"]
            print(f"| {title.format(files=files)} | {' | '.join(cells)} |", flush=True)
            subprocess.run(
                ["rm", "-rf", str(folder)], check=True
            )  # Python's own gives up in such depths


if __name__ == "__main__":
    main()
