"""What a run fails without is no choice: it does not part what stands on the one path that is left."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.events import Sharded
from fsdp2lint.project.project import Project
from fsdp2lint.source.source import Source
from tests.support.running import invoke

HEADER = """
import sys
from settings import cfg, model
from torch.distributed.fsdp import fully_shard
"""


def survived(text: str) -> tuple[str, str]:
    """All conditions of the sharding, and those of them that nobody chose."""
    project = Project.of([Source("train.py", HEADER + dedent(text) + "fully_shard(model)\n")])
    (sharded,) = next(iter(traces(project))).of(Sharded)
    guards = sharded.guards
    said = sorted(" or ".join(sorted(g.words() for g in clause)) for clause in guards.survived)
    return guards.words().replace("settings.", ""), " and ".join(said).replace("settings.", "")


CHECKS = {
    "assert": ("assert cfg.a\n", "when cfg.a", "cfg.a"),
    "raise": ("if cfg.a:\n    raise ValueError\n", "when not cfg.a", "not cfg.a"),
    "raise in a branch": (
        "if cfg.a:\n    if cfg.b:\n        raise ValueError\n",
        "when (not cfg.a or not cfg.b)",
        "not cfg.a or not cfg.b",
    ),
    "the only branch that goes on": (
        "if cfg.a:\n    x = 1\nelif cfg.b:\n    raise ValueError\nelse:\n    raise TypeError\n",
        "when cfg.a",
        "cfg.a",
    ),
    "one of several kinds": (
        "if cfg.a:\n    x = 1\nelif cfg.b:\n    x = 2\nelse:\n    raise ValueError\n",
        "when (cfg.a or cfg.b)",
        "cfg.a or cfg.b",
    ),
    "a program that ends": ("if cfg.a:\n    sys.exit()\n", "when not cfg.a", ""),
}


@pytest.mark.parametrize("name", CHECKS)
def test_what_a_run_fails_without(name: str) -> None:
    text, conditions, expected = CHECKS[name]
    assert survived(text) == (conditions, expected)


SCRIPT = HEADER + dedent(
    """
    import torch
    from torch import nn

    def optimizer_of(model):
        return torch.optim.AdamW(model.parameters())

    def prepare(model):
    {}

    model = nn.Linear(8, 8)
    if cfg.replicated:
        optimizer = optimizer_of(model)
    prepare(model)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    """
)
SHARD = "\nfully_shard(model)"
SHARD_INSIDE = "\n    fully_shard(model)"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("if cfg.old:\n    raise ValueError" + SHARD, True),
        ("assert not cfg.old" + SHARD, True),
        ("try:\n    cfg.load()\nexcept OSError:\n    return" + SHARD, True),
        ("if isinstance(cfg.names, dict):" + SHARD_INSIDE, True),
        ("if any([test(model) for test in cfg.tests]):" + SHARD_INSIDE, True),
        ("if cfg.multi_node:\n    sys.exit()" + SHARD, False),
        ("if cfg.old:\n    sys.exit()" + SHARD, True),
        ("if cfg.large:" + SHARD_INSIDE, True),
        ("if cfg.shards:" + SHARD_INSIDE, False),
        ("if isinstance(model, cfg.Kind):" + SHARD_INSIDE, False),
    ],
)
def test_what_parts_two_events(lines: str, found: bool, tmp_path: Path) -> None:
    """The optimizer is built on one flag, the model is sharded behind another test."""
    body = "\n".join(f"    {line}" for line in lines.splitlines())
    (tmp_path / "train.py").write_text(SCRIPT.format(body))
    assert ("FSDP201" in invoke("check", "-n", cwd=tmp_path).stdout) is found
