"""``isinstance`` with classes of wrappers, torch's and the project's own: which branches a model can reach."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, named

SINGLE = """\
import torch


class Single(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
"""
TRAIN = """\
import sys
import torch
from torch import nn
{imports}
from torch.nn.parallel import DistributedDataParallel as DDP
from single import Single


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


def load(model, path):
    if isinstance(model, {sharded}):
        {loads}
    elif isinstance(model, (DDP, Single)):
        model.module.load_state_dict(torch.load(path), strict=True)


def main(strategy):
    model = {net}
    if strategy == "fsdp":
        {wraps}
    elif strategy == "ddp":
        model = DDP(model)
    else:
        model = Single(model)
    load(model, "m.pt")


main(sys.argv[1])
"""
NETS = ["Net()", "nn.Linear(4, 4)"]
STAYS = "        model.module.load_state_dict(torch.load(path), strict=True)\n"


def found(single: str, text: str) -> set[str]:
    """What is found about loads in a program of two files."""
    sources = [Source("single.py", single), Source("train.py", text)]
    return {one.code for one in named(list(findings(sources)))} & {"FSDP303"}


@pytest.mark.parametrize("net", NETS)
def test_a_sharded_model_is_no_wrapper(net: str) -> None:
    text = TRAIN.format(
        imports="from torch.distributed.fsdp import FSDPModule, fully_shard",
        sharded="FSDPModule",
        loads="print('sharded')",
        wraps="fully_shard(model)",
        net=net,
    )
    assert found(SINGLE, text) == set()


@pytest.mark.parametrize("net", NETS)
def test_fsdp1s_wrapper_is_no_class_of_the_project(net: str) -> None:
    text = TRAIN.format(
        imports="from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
        sharded="FSDP",
        loads="model.load_state_dict(torch.load(path))",
        wraps="model = FSDP(model)",
        net=net,
    )
    made = migrate((Source("single.py", SINGLE), Source("train.py", text)), knowledge.codemods())
    assert made.ledger.manual == []
    assert STAYS in made.after[1].text
