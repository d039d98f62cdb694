"""Averages of parameters that are plain tensors where the parameters are shards (FSDP245, FSDP239), form by form."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, marked, named

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from elsewhere import kept


class Average:
    def __init__(self, model):
        self.shadow = {SHADOW}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            {UPDATE}


def build():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    return model


def shard(model):
    for layer in model:
        fully_shard(layer)
    fully_shard(model)


dist.init_process_group("gloo")
model = build()
"""
TAIL = """
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    average.update(model)
"""
BEFORE = "average = Average(model)\nshard(model)\n"
AFTER = "shard(model)\naverage = Average(model)\n"
OF_ALL = "{n: p.detach().clone() for n, p in model.named_parameters()}"
GATHERED = "{n: p.detach().full_tensor().clone() for n, p in model.named_parameters()}"
LERP = "self.shadow[name].lerp_(p.detach(), 0.1)"
COPY = "p.copy_(self.shadow[name])"


@pytest.mark.parametrize(
    ("shadow", "update", "order", "code"),
    [
        (OF_ALL, LERP, BEFORE, "FSDP245"),
        (OF_ALL, COPY, BEFORE, "FSDP239"),
        (GATHERED, LERP, AFTER, "FSDP245"),
        (OF_ALL, LERP, AFTER, ""),
        (OF_ALL, COPY, AFTER, ""),
        ("dict(kept)", LERP, BEFORE, ""),
        ("{**kept, **{n: p.clone() for n, p in model.named_parameters()}}", LERP, BEFORE, ""),
    ],
)
def test_an_average_is_of_the_kind_of_what_it_averages(
    shadow: str, update: str, order: str, code: str
) -> None:
    mark = f"  # expect: {code}" if code else ""
    head = HEAD.replace("{SHADOW}", shadow).replace("{UPDATE}", update + mark)
    source = Source("train.py", head + dedent(order) + TAIL)
    assert named(list(findings([source]))) == marked([source], "expect")
