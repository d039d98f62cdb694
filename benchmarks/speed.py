"""How fast `check` is: python benchmarks/speed.py

1. A tree of files that have nothing to do with FSDP, against merely reading them.
2. One training script of about 500 lines.
3. Scripts of growing size: the time for a line should stay the same.

Each number is the best of several runs in this process, with everything imported before.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fsdp2lint.discover import Exclusion, discover
from fsdp2lint.runner import Batch, check

FILES = 3000
SIZES = (250, 500, 1000, 2000, 4000)

PLAIN = '''\
"""A module that trains nothing."""
import json
import torch


class Loader:
    def __init__(self, path):
        self.path = path

    def rows(self):
        with open(self.path) as lines:
            return [json.loads(line) for line in lines]
'''

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def main(cfg):
    dist.init_process_group("nccl")
    model = nn.Sequential(*[Block(cfg.width) for _ in range(cfg.depth)])
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for batch in range(cfg.steps):
        loss = model(torch.randn(8, cfg.width)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

HELPER = '''

def metric_{n}(values, cfg):
    """Something to be followed."""
    total = 0.0
    for value in values:
        if cfg.clip_{n} and value > cfg.limit:
            total += cfg.limit
        else:
            total += value
    if dist.get_rank() == 0:
        print("metric {n}", total / max(len(values), 1))
    return total
'''

TAIL = """

if __name__ == "__main__":
    main(load_config())
"""


def script(lines: int) -> bytes:
    """A training script of about so many lines."""
    each = HELPER.count("\n")
    helpers = max((lines - HEAD.count("\n")) // each, 0)
    return (HEAD + "".join(HELPER.format(n=n) for n in range(helpers)) + TAIL).encode()


def best(action: Callable[[], object], runs: int = 5) -> float:
    """The shortest time of several runs, in seconds."""
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)


def write_tree(root: Path) -> None:
    for number in range(FILES):
        folder = root / f"package_{number // 100}" / f"part_{number // 10 % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"module_{number}.py").write_text(PLAIN * (1 + number % 20))


def tree_without_fsdp() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_tree(root)
        files = sorted(root.rglob("*.py"))
        size = sum(f.stat().st_size for f in files) / 1e6
        reading = best(lambda: [f.read_bytes() for f in files])
        checking = best(lambda: check(Batch.of_files(discover([name], Exclusion()))))
    print(f"{FILES} files without FSDP ({size:.1f} MB)")
    print(f"  reading them  {reading * 1000:7.1f} ms")
    print(f"  check         {checking * 1000:7.1f} ms   ({checking / reading:.2f} times as long)")


def one_script(lines: int = 500) -> None:
    raw = script(lines)
    seconds = best(lambda: check(Batch.of_text(raw, "train.py")), runs=3)
    count = raw.count(b"\n")
    print(f"one script of {count} lines\n  check         {seconds * 1000:7.1f} ms")


def growth() -> None:
    print("growth")
    for lines in SIZES:
        raw = script(lines)
        count = raw.count(b"\n")
        seconds = best(lambda raw=raw: check(Batch.of_text(raw, "train.py")), runs=3)  # type: ignore[misc]
        print(
            f"  {count:5} lines   {seconds * 1000:7.1f} ms   {seconds / count * 1e6:6.1f} us a line"
        )


if __name__ == "__main__":
    tree_without_fsdp()
    one_script()
    growth()
