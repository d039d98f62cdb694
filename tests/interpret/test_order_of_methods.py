"""The methods of a class that nobody in sight calls: which of them surely has run before another."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.interpret.entries import traces
from fsdp2lint.project.project import Project
from fsdp2lint.source.source import Source

HEAD = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.inner(x)

"""


def codes(text: str) -> set[str]:
    project = Project.of([Source("actor.py", HEAD + dedent(text))])
    found = set()
    for trace in traces(project):
        found |= {rule.code for rule in knowledge.rules() if list(rule.findings(trace))}
    return found


MADE = """
class Actor:
    def begin(self, config):
        self.model = Net()
        fully_shard(self.model)

    def step(self, batch):
        loss = self.model.forward(batch).sum()
        loss.backward()
"""
HANDED_OVER = """
class Actor:
    def __init__(self):
        self.model = Net()

    def shard(self):
        fully_shard(self.model)

    def step(self, batch):
        loss = self.model.forward(batch).sum()
        loss.backward()
"""


def test_a_method_comes_after_the_one_that_made_its_model() -> None:
    assert "FSDP203" in codes(MADE)


@pytest.mark.parametrize(
    "text",
    [HANDED_OVER, MADE.replace("self.model.forward", "Net().forward")],
    ids=["one for both", "another"],
)
def test_methods_that_share_a_model_made_before_have_no_order(text: str) -> None:
    assert "FSDP203" not in codes(text)


BASE = """
class Base:
    def __init__(self):
        self.model = None

    def train(self, batches):
        for batch in batches:
            self.step(batch)

    def step(self, batch):
        raise NotImplementedError


class Trainer(Base):
    def begin(self, config):
        self.model = Net()
        fully_shard(self.model)

    def step(self, batch):
        self.model.forward(batch).sum().backward()
"""


def test_who_makes_the_model_runs_before_what_a_base_class_does_with_it() -> None:
    assert "FSDP203" in codes(BASE)
    assert "FSDP203" not in codes(BASE.replace(".forward(batch)", "(batch)"))
