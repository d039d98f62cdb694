"""A block of ``summon_full_params`` that only runs the model is rewritten, whatever the model counts as it runs."""

from __future__ import annotations

import pytest

from tests.migrate.test_ledger import made

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        self.steps, self.seen, self.last = 0, [], None

    def forward(self, x):
        {keeps}
        return self.head(self.encoder(x))


def generate(model, x):
    with torch.no_grad():
        with FSDP.summon_full_params(model):
            {block}


model = FSDP(Net(), use_orig_params=True)
generate(model, torch.randn(2, 4))
"""
RUNS = "return model.head(model.encoder(x)), model(x)"


@pytest.mark.parametrize(
    "keeps",
    [
        "pass",
        "self.seen = []",
        "self.steps += 1",
        "self.steps = self.steps + 1",
        "self.last = x * 2",
        "y = torch.zeros_like(x); y[0] = x[0]",
    ],
)
def test_what_the_model_keeps_is_no_parameter(keeps: str) -> None:
    done = made(PROGRAM.format(keeps=keeps, block=RUNS))
    assert done.ledger.manual == []
    assert "with unsharded(model):" in done.after[0].text


@pytest.mark.parametrize(
    "keeps",
    [
        "self.head.weight = nn.Parameter(x)",
        "self.head = nn.Linear(4, 4)",
        "self.head.weight = self.encoder.weight",
        "self.head.bias = None",
        "self.head.weight.data += 1",
        "self.head.weight.data[0] = 1",
        "w = self.head.weight.detach(); w[0] = 1",
    ],
)
def test_parameters_that_are_replaced_or_written_are_left(keeps: str) -> None:
    done = made(PROGRAM.format(keeps=keeps, block=RUNS))
    assert any("runs the model and changes its parameters" in e.why for e in done.ledger.manual)
