"""An average of weights that is evaluated: FSDP2's root has to free its parameters before it is written to."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

SCRIPT = """\
import copy
import sys

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


@torch.no_grad()
def follow(average, model):
    for kept, new in zip(average.parameters(), model.parameters()):
        kept.lerp_(new, 0.1)


@torch.no_grad()
def evaluate(model):
    return model(torch.ones(1, 8)).mean()


model = nn.Linear(8, 8)
average = copy.deepcopy(model)
model = FSDP(model, device_id=0, use_orig_params=True)
average = FSDP(average, device_id=0, use_orig_params=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    model(torch.ones(1, 8)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    follow(average, model)
    {then}
"""
SAVED = """\
with FSDP.state_dict_type(average, StateDictType.FULL_STATE_DICT):
            torch.save(average.state_dict(), "average.pt")
"""


@pytest.mark.parametrize(
    ("then", "freed"),
    [
        ("print(evaluate(average))", 1),
        (f'print(evaluate(average))\n    if "save" in sys.argv:\n        {SAVED}', 1),
        ("print(evaluate(model))", 0),
        ("pass", 0),
    ],
    ids=["evaluated", "saved in some runs", "the model is evaluated", "not evaluated"],
)
def test_an_average_that_is_evaluated_is_freed_first(then: str, freed: int) -> None:
    made = migrate((Source("train.py", SCRIPT.format(then=then)),), knowledge.codemods())
    assert made.failures == []
    assert made.after[0].text.count("average.reshard()\n    for kept, new in zip(") == freed
    assert made.after[0].text.count("reshard()") == freed
