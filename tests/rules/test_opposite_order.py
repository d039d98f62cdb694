"""Ranks that come to the same calls in another order (FSDP401), form by form."""

from __future__ import annotations

from textwrap import indent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, named

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
for layer in model:
    fully_shard(layer)
fully_shard(model)
loss, count, x = torch.ones(1), torch.ones(1), torch.ones(4, 8)
first = dist.get_rank() == 0


class Meter:
    def __init__(self, value):
        self.value = value

    def share(self):
        dist.all_reduce(self.value)


"""
CROSSED = (
    ("dist.barrier()\ndist.all_reduce(loss)", "dist.all_reduce(loss)\ndist.barrier()"),
    (
        "dist.all_reduce(loss)\ndist.all_reduce(count)",
        "dist.all_reduce(count)\ndist.all_reduce(loss)",
    ),
    ("Meter(loss).share()\nMeter(count).share()", "Meter(count).share()\nMeter(loss).share()"),
    ("model(x)\ndist.barrier()", "dist.barrier()\nmodel(x)"),
)
FINE = (
    ("dist.barrier()\ndist.all_reduce(loss)", "dist.barrier()\ndist.all_reduce(loss)"),
    (
        "dist.all_reduce(loss)\ndist.all_reduce(count)",
        "dist.all_reduce(loss)\ndist.all_reduce(count)",
    ),
    ("dist.all_reduce(loss)\ndist.all_reduce(count)", "dist.all_reduce(x)\ndist.all_reduce(loss)"),
    ("print(1)\ndist.barrier()", "dist.barrier()\nprint(2)"),
)


def crossed(one: str, other: str) -> bool:
    """Whether the two sides of a test of the rank are found to cross."""
    text = f"{HEAD}if first:\n{indent(one, '    ')}\nelse:\n{indent(other, '    ')}\n"
    return "FSDP401" in {said.code for said in named(list(findings([Source("train.py", text)])))}


@pytest.mark.parametrize(("one", "other"), CROSSED)
def test_two_sides_cross(one: str, other: str) -> None:
    assert crossed(one, other)


@pytest.mark.parametrize(("one", "other"), FINE)
def test_two_sides_meet(one: str, other: str) -> None:
    assert not crossed(one, other)
