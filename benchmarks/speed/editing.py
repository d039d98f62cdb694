"""What an edit costs, and many programs: ``python benchmarks/speed/editing.py [FOLDER …]`` prints a table, in CPU seconds.

From a change to diagnostics of the language server on a file of 1,000 lines; trainers without a word of FSDP, each with
the same mistake, that a file beside them shards for; and of each FOLDER ``check`` out of a cache after a comment was added
to one file, as a share of a cold run: the median and the worst of a sample. The folder is copied, nothing in it changes.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from extremes import measured
from scripts import script

from fsdp2lint.server.app.desk import Desk

EDITS = 15
LINES = 1_000
TOOL = [sys.executable, "-m", "fsdp2lint", "check", "-j1", "--isolated"]

SHARDING = """\
from torch.distributed.fsdp import fully_shard


def prepare(model):
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return model
"""
TRAINER = """\
import torch
from torch import nn

from sharding import prepare


def main():
    model = nn.Sequential(nn.Linear({size}, {size}), nn.Linear({size}, {size}))
    optimizer = torch.optim.AdamW(model.parameters())
    prepare(model)
    for batch in torch.randn(10, 8, {size}):
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
"""
"""An optimizer that is built before the model is sharded: FSDP201."""


def main() -> None:
    """Print the rows."""
    print("| what | CPU s |\n|---|---|")
    with tempfile.TemporaryDirectory(prefix="fsdp2lint-editing-") as work:
        print(f"| language server, {LINES:,} lines, median of {EDITS} edits | {_latency():.2f} |")
        for count in (100, 160, 300, 1_000):
            found, seconds = _trainers(Path(work) / str(count), count)
            print(f"| {count:,} trainers without a marker: {found:,} findings | {seconds:.1f} |")
        for number, folder in enumerate(map(Path, sys.argv[1:])):
            print(f"| {folder.name} {_after_comments(folder, Path(work) / f'edited{number}')}")


def _latency() -> float:
    """The median seconds from a new text of a buffer to what is wrong in it."""
    desk, stop = Desk(), threading.Event()
    text = script(LINES)
    desk.check({"/nowhere/train.py": text.encode()}, stop)
    spent = []
    for number in range(EDITS):
        text = text.replace("    total = 0.0\n", f"    total = {number}.5\n", 1)
        began = time.process_time()
        desk.check({"/nowhere/train.py": text.encode()}, stop)
        spent.append(time.process_time() - began)
        text = text.replace(f"    total = {number}.5\n", "    total = 0.0\n", 1)
    return statistics.median(spent)


def _trainers(folder: Path, count: int) -> tuple[int, float]:
    """How often the mistake is found, and the seconds that it takes."""
    folder.mkdir()
    (folder / "sharding.py").write_text(SHARDING)
    for number in range(count):
        (folder / f"train_{number}.py").write_text(TRAINER.format(size=8 + number))
    command = [*TOOL, "--no-cache", "-f", "json", "-o", str(folder.with_suffix(".json")), "."]
    cost = measured(command, folder)
    found = json.loads(folder.with_suffix(".json").read_text())
    return sum(one["code"] == "FSDP201" for one in _findings(found)), cost.cpu


def _findings(report: object) -> list[dict[str, object]]:
    if isinstance(report, list):
        return report
    assert isinstance(report, dict)
    return list(report.get("diagnostics") or report.get("findings") or ())


def _after_comments(folder: Path, copy: Path) -> str:
    """The cells of a folder: seconds cold, then the shares after a comment was added to files of all sizes."""
    left_out = shutil.ignore_patterns(".git", ".fsdp2lint_cache")
    shutil.copytree(folder, copy, symlinks=True, ignore=left_out)
    command = [*TOOL, "-q", "--cache-dir", str(copy.with_suffix(".cache")), "."]
    cold = measured(command, copy).cpu
    files = sorted(copy.rglob("*.py"), key=lambda one: one.stat().st_size)
    shares = []
    for file in files[len(files) // (2 * EDITS) :: max(len(files) // EDITS, 1)]:
        text = file.read_text()
        file.write_text(text + "\n# a comment\n")
        shares.append(measured(command, copy).cpu / cold)
        file.write_text(text)
    middle, worst = statistics.median(shares), max(shares)
    return f"cold; after a comment {middle:.2f} of it, {worst:.2f} at worst ({len(shares)} files) | {cold:.1f} |"


if __name__ == "__main__":
    main()
