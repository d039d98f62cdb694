"""Numbers of sharded tensors that are formatted (FSDP218), form by form."""

from __future__ import annotations

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, named

START = """\
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
fully_shard(model)
model(torch.ones(4, 8)).sum().backward()


def squares(module):
    return [p.grad.norm() ** 2 for p in module.parameters()]


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


"""
RAISES = (
    'print(f"{sum(squares(model)) ** 0.5:.4f}")',
    'print("{:.4f}".format(model[0].weight.grad.abs().max()))',
    'print(f"{model[0].weight.grad.norm() / 8:.3e}")',
    'total = 0\nfor square in squares(model):\n    total = total + square\nprint(f"{total.sqrt():.2f}")',
)
SHOWS = (
    'print(f"{sum(squares(model)) ** 0.5}")',
    'print(f"{sum(squares(model)).full_tensor() ** 0.5:.4f}")',
    'print(f"{math.sqrt(sum(squares(model))):.4f}")',
    'print(f"{sum(s.item() for s in squares(model)) ** 0.5:.4f}")',
    'print(f"{sum(whole(p.grad).norm() ** 2 for p in model.parameters()):.4f}")',
    'print(f"{model(torch.ones(4, 8)).norm():.4f}")',
    'print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}")',
)


def formatted(text: str) -> bool:
    """Whether something in a script is said to raise where it is formatted."""
    said = findings([Source("train.py", START + text + "\n")])
    lines = {one.line for one in named(list(said)) if one.code == "FSDP218"}
    return START.count("\n") + text.count("\n") + 1 in lines


@pytest.mark.parametrize("text", RAISES)
def test_what_is_computed_from_shards_takes_no_spec(text: str) -> None:
    assert formatted(text)


@pytest.mark.parametrize("text", SHOWS)
def test_a_number_or_a_whole_tensor_takes_one(text: str) -> None:
    said = list(findings([Source("train.py", START + text + "\n")]))
    assert not [one for _, one in said if "format spec" in one.message]
