"""The switch of gradient sync in the last micro-batch before a step (FSDP211), form by form."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from elsewhere import config, micro_batches, x

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
n = config.accumulate
"""
LOOP = """\
for step in range(100):
    for {target} in {walked}:
        model.set_requires_gradient_sync({switch})
        model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

OFF = [
    ("i", "range(n)", "i == n"),
    ("i", "range(n)", "i < n - 1"),
    ("i", "range(n)", "i + 1 < n"),
    ("i", "range(n)", "i > n - 1"),
    ("i", "range(n)", "i == n - 2"),
    ("i", "range(n)", "i != n - 1"),
    ("i", "range(4)", "i == 4"),
    ("i", "range(1, n)", "i == n"),
    ("i", "range(n)", "not (i + 1 == n)"),
    ("i", "range(1, n + 1)", "i == n + 1"),
    ("i, batch", "enumerate(micro_batches)", "i == len(micro_batches)"),
    ("i, batch", "enumerate(micro_batches, 1)", "i == len(micro_batches) - 1"),
    ("i, batch", "enumerate(micro_batches)", "i + 1 < len(micro_batches)"),
]
ON = [
    ("i", "range(n)", "i == n - 1"),
    ("i", "range(n)", "i + 1 == n"),
    ("i", "range(n)", "i >= n - 1"),
    ("i", "range(n)", "not (i < n - 1)"),
    ("i", "range(4)", "i == 3"),
    ("i", "range(1, n)", "i == n - 1"),
    ("i", "range(1, n + 1)", "i == n"),
    ("i", "range(n)", "i == config.last"),
    ("i", "range(0, n, 2)", "i == n - 2"),
    ("i, batch", "enumerate(micro_batches)", "i == len(micro_batches) - 1"),
    ("i, batch", "enumerate(micro_batches, 1)", "i == len(micro_batches)"),
    ("i, batch", "enumerate(micro_batches)", "i + 1 == len(micro_batches)"),
    ("i, batch", "enumerate(micro_batches)", "i == n"),
]


@pytest.mark.parametrize(("target", "walked", "switch"), [*OFF, *ON])
def test_sync_must_be_on_in_the_last_round(target: str, walked: str, switch: str) -> None:
    source = Source("t.py", HEAD + LOOP.format(target=target, walked=walked, switch=switch))
    said = {rule.code for rule, _ in findings([source])}
    assert said == ({"FSDP211"} if (target, walked, switch) in OFF else set())


def test_a_step_in_the_same_loop_has_rounds_of_its_own() -> None:
    text = """
        for step in range(100):
            for i in range(n):
                model.set_requires_gradient_sync(i < n - 1)
                model(x).sum().backward()
                if config.ready:
                    optimizer.step()
        """
    assert not list(findings([Source("t.py", HEAD + dedent(text))]))


SETTINGS = """\
import sys
from dataclasses import dataclass


@dataclass
class Config:
    accumulate: int = 8


class Trainer:
    def __init__(self, config):
        self.config = config

    def step(self):
        n = self.config.accumulate
        for i in range(n):
            model.set_requires_gradient_sync({SWITCH})
            model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


trainer = Trainer(Config(int(sys.argv[1])) if len(sys.argv) > 1 else Config())
for _ in range(100):
    trainer.step()
"""


@pytest.mark.parametrize(("switch", "off"), [("i == n", True), ("i == n - 1", False)])
def test_the_number_of_rounds_may_be_a_setting_or_its_default(switch: str, off: bool) -> None:
    source = Source("t.py", HEAD + SETTINGS.replace("{SWITCH}", switch))
    assert {rule.code for rule, _ in findings([source])} == ({"FSDP211"} if off else set())
