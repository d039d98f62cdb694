"""Dictionaries whose keys are names of parameters: FSDP1's names had its prefix, and the ledger says so."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

NAMED = "FSDP1's had `_fsdp_wrapped_module.` in them"
FLAT_NAMED = "FSDP1's were those of flat parameters"
PROGRAM = """\
import copy
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{imports}


class Average:
    def __init__(self, model):
        self.kept = {{}}
        for name, p in model.named_parameters():
            self.kept[name] = p.detach().clone()

    def update(self, model):
        for name, p in model.named_parameters():
            self.kept[name].lerp_(p.detach(), 0.01)


model = FSDP(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), use_orig_params={original})
{uses}
"""


def said(uses: str, original: bool = True, imports: str = "", **files: str) -> list[str]:
    """What the ledger says of names."""
    text = PROGRAM.format(uses=uses, original=original, imports=imports)
    sources = [Source("train.py", text), *(Source(f"{n}.py", t) for n, t in files.items())]
    made = migrate(tuple(sources), knowledge.codemods())
    assert not made.failures
    reasons = [entry.why for entry in made.ledger.entries]
    return [said for why in reasons for said in (NAMED, FLAT_NAMED) if said in why]


def test_an_average_in_a_class() -> None:
    assert said("ema = Average(model)\nema.update(model)") == [NAMED, NAMED]
    assert said("ema = Average(model)", original=False) == [FLAT_NAMED]


@pytest.mark.parametrize(
    "uses",
    [
        "ema = {name: p.clone() for name, p in model.named_parameters()}",
        "ema = dict(model.named_parameters())",
        "ema = torch.load('ema.pt')\nfor n, p in model.named_parameters():\n    p.data.copy_(ema[n])",
    ],
)
def test_names_that_become_keys(uses: str) -> None:
    assert said(uses) == [NAMED]


def test_a_helper_of_another_file() -> None:
    helper = "def average(net):\n    return {n: p.clone() for n, p in net.named_parameters()}\n"
    assert said("ema = average(model)", imports="from helper import average", helper=helper) == [
        NAMED
    ]


@pytest.mark.parametrize(
    "uses",
    [
        "for name, p in model.named_parameters():\n    print(name, p.shape)",
        "ema = {id(p): name for name, p in model.named_parameters()}",
        "plain = nn.Linear(4, 4)\nema = dict(plain.named_parameters())",
        "ema = {}\nfor name, p in model.named_parameters():\n"
        "    name = name.replace('_fsdp_wrapped_module.', '')\n    ema[name] = p",
        "ema = {name.replace('_fsdp_wrapped_module.', ''): p for name, p in model.named_parameters()}",
        "with FSDP.summon_full_params(model):\n"
        "    ema = {n: p.clone() for n, p in model.named_parameters()}",
    ],
)
def test_names_that_are_no_keys_or_have_no_prefix(uses: str) -> None:
    assert said(uses) == []
