"""Tests of constants, of lists and of what is in them: what they exclude, and what they do not ask."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.interpret import machine
from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.events import Called, Sharded
from fsdp2lint.model.trace import Trace
from fsdp2lint.model.values import Module
from fsdp2lint.project.project import Project
from fsdp2lint.source.source import Source

HEAD = """
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP, fully_shard
from settings import cfg, cond
"""


def traced(text: str) -> list[Trace]:
    project = Project.of([Source("train.py", HEAD + dedent(text))])
    return list(traces(project))


def codes(text: str) -> set[str]:
    found = set()
    for trace in traced(text):
        found |= {rule.code for rule in knowledge.rules() if list(rule.findings(trace))}
    return found


ASKED = """
model = nn.Linear(8, 8)
if cfg.mode == "fsdp":
    fully_shard(model)
if {test}:
    print("here")
"""


@pytest.mark.parametrize(
    ("test", "excluded"),
    [
        ('cfg.mode in ("ddp", "deepspeed")', True),
        ('cfg.mode not in ["ddp", "fsdp"]', True),
        ('cfg.mode in {"ddp", "fsdp"}', False),
        ('cfg.mode not in ("ddp", "deepspeed")', False),
        ('cfg.name in ("ddp", "deepspeed")', False),
        ('cfg.mode in ("ddp", cfg.other)', False),
        ('cfg.mode in {"ddp": 1}', False),
    ],
)
def test_one_of_several_constants(test: str, excluded: bool) -> None:
    trace = traced(ASKED.format(test=test))[0]
    (sharded,) = trace.of(Sharded)
    (printed,) = (c for c in trace.of(Called) if c.name == "builtins.print")
    assert sharded.guards.excludes(printed.guards) is excluded
    assert printed.guards.excludes(sharded.guards) is excluded


def test_the_same_constants_written_twice_are_one_test() -> None:
    trace = traced(
        ASKED.format(test='cfg.a in ("x", "y")') + 'if not cfg.a in ("x", "y"):\n    print()\n'
    )[0]
    one, other = (c for c in trace.of(Called) if c.name == "builtins.print")
    assert one.guards.excludes(other.guards)


@pytest.mark.parametrize("kind", ["nn.Module", "torch.Tensor", "Trainer"])
def test_a_list_is_no_module(kind: str) -> None:
    text = """
        class Trainer:
            pass

        def whole(models):
            return models if isinstance(models, {kind}) else nn.Sequential(*models)

        fully_shard(whole([nn.Linear(8, 8)]))
    """
    (sharded,) = traced(text.replace("{kind}", kind))[0].of(Sharded)
    assert not sharded.guards.clauses
    (model,) = sharded.modules
    assert isinstance(model, Module)
    assert model.cls.words() == "torch.nn.Sequential"


def test_what_is_said_to_be_a_list_may_be_another_thing() -> None:
    text = """
        class Net(nn.Module):
            pass

        def shard(models: list[Net] | Net):
            if isinstance(models, nn.Module):
                fully_shard(models)
    """
    assert any(trace.of(Sharded) for trace in traced(text))


LOGGED = """
net = nn.Linear(8, 8).cuda()
fully_shard(net)
optimizer = torch.optim.AdamW(net.parameters())
metrics = dict()
for step in range(10):
    net(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    {kept}
    if {test}:
        dist.barrier()
"""


@pytest.mark.parametrize(
    ("kept", "test", "found"),
    [
        ('metrics["time"] = time.time()', "metrics", False),
        ('metrics["time"] = time.time()', "not metrics", False),
        ('metrics["time"] = time.time()', 'metrics["time"] > 100', True),
        ("now = time.time()", "now > 100", True),
    ],
)
def test_whether_there_is_anything_in_a_dictionary(kept: str, test: str, found: bool) -> None:
    assert ("FSDP412" in codes(LOGGED.format(kept=kept, test=test))) is found


OF_A_KIND = """
def kind(model):
    if isinstance(model, FSDP):
        return 1
    return 2 if isinstance(model, FSDPModule) else 0

def train():
    model = nn.Sequential(nn.Linear(8, 8))
    fully_shard(model)
    x = [{long}]
    {test}
        inner = model._fsdp_wrapped_module

train()
"""


@pytest.mark.parametrize(
    ("test", "found"), [("if kind(model) == 1:", False), ("if cfg.inner:", True)]
)
def test_a_function_that_was_not_entered_may_have_asked_for_the_kind(
    monkeypatch: pytest.MonkeyPatch, test: str, found: bool
) -> None:
    long = "1, " * 2_000
    for steps in (20, 35_000):
        monkeypatch.setattr(machine, "MAX_STEPS", steps)
        assert ("FSDP229" in codes(OF_A_KIND.format(long=long, test=test))) is found


RESUMED = """
def path_of(name):
    return f"{{name}}_{{dist.get_rank()}}.pt"

def train(name):
    model = nn.Linear(8, 8)
    fully_shard(model)
    x = [{long}]
    model.load_state_dict(torch.load({path}))

train(cfg.name)
"""


@pytest.mark.parametrize(("path", "found"), [("path_of(name)", False), ('"model.pt"', True)])
def test_the_name_of_a_file_that_was_not_followed_may_be_that_of_a_rank(
    monkeypatch: pytest.MonkeyPatch, path: str, found: bool
) -> None:
    for steps in (20, 35_000):
        monkeypatch.setattr(machine, "MAX_STEPS", steps)
        assert ("FSDP303" in codes(RESUMED.format(long="1, " * 2_000, path=path))) is found
