"""How fast ``check`` is: ``pytest benchmarks`` (the normal test run does not collect it).

1. A tree of files that have nothing to do with FSDP, beside merely reading them.
2. A training script, by size: the time for a line should stay the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

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


def write_tree(root: Path) -> None:
    for number in range(FILES):
        folder = root / f"package_{number // 100}" / f"part_{number // 10 % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"module_{number}.py").write_text(PLAIN * (1 + number % 20))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of files without FSDP."""
    root = tmp_path_factory.mktemp("tree")
    write_tree(root)
    return root


def test_read_a_tree(benchmark: BenchmarkFixture, tree: Path) -> None:
    files = sorted(tree.rglob("*.py"))
    assert len(benchmark(lambda: [f.read_bytes() for f in files])) == FILES


def test_check_a_tree_without_fsdp(benchmark: BenchmarkFixture, tree: Path) -> None:
    report = benchmark(lambda: check(Batch.of_files(discover([str(tree)], Exclusion()))))
    assert not report.found


@pytest.mark.parametrize("lines", SIZES)
def test_check_a_script(benchmark: BenchmarkFixture, lines: int) -> None:
    raw = script(lines)
    report = benchmark(lambda: check(Batch.of_text(raw, "train.py")))
    assert not report.found
