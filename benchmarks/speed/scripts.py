"""Training scripts of any length."""

from __future__ import annotations

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


def script(lines: int) -> str:
    """A training script of about so many lines."""
    each = HELPER.count("\n")
    helpers = max((lines - HEAD.count("\n") - TAIL.count("\n")) // each, 0)
    return HEAD + "".join(HELPER.format(n=n) for n in range(helpers)) + TAIL
