"""Containers that a function is given for one kind of blocks, and never reaches for another (FSDP208)."""

from __future__ import annotations

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings

TEXT = """\
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.Linear(8, 8)
        self.mlp = nn.Linear(8, 8)

    def forward(self, x):
        return self.mlp(self.attention(x))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.{NAME} = nn.Linear(8, 8)
        self.mlp = nn.ModuleDict({"text": nn.Linear(8, 8), "image": nn.Linear(8, 8)})

    def forward(self, x):
        return self.mlp["text"](self.{NAME}(x))


class Net(nn.Module):
    def __init__(self, mixed):
        super().__init__()
        self.layers = nn.ModuleList([Mixed() if mixed else Dense() for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def shard(model):
    for layer in model.layers:
        fully_shard(layer.attention)
        fully_shard(layer.mlp)
    fully_shard(model)


dist.init_process_group("gloo")
model = Net(argparse.ArgumentParser().parse_args().mixed)
shard(model)
model(torch.ones(2, 8)).sum().backward()
"""


@pytest.mark.parametrize(("name", "codes"), [("attention", {"FSDP208"}), ("attn", set())])
def test_what_raises_before_reaches_no_container(name: str, codes: set[str]) -> None:
    source = Source("train.py", TEXT.replace("{NAME}", name))
    assert {rule.code for rule, _ in findings([source])} == codes
