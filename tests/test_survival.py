"""What a run fails without is no choice: it does not part what stands on the one path that is left."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.events import Sharded
from fsdp2lint.project import Project
from fsdp2lint.source import Source
from tests.running import invoke

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


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("if cfg.old:\n    raise ValueError", True),
        ("assert not cfg.old", True),
        ("if cfg.old:\n    sys.exit()", False),
    ],
)
def test_a_check_parts_nothing(lines: str, found: bool, tmp_path: Path) -> None:
    """The model is sharded behind the check, the optimizer is built on another flag."""
    script = HEADER + dedent(
        """
        import torch
        from torch import nn

        def optimizer_of(model):
            return torch.optim.AdamW(model.parameters())

        def prepare(model):
        {}
            fully_shard(model)

        model = nn.Linear(8, 8)
        if cfg.fused:
            optimizer = optimizer_of(model)
        prepare(model)
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        """
    ).format("\n".join(f"    {line}" for line in lines.splitlines()))
    (tmp_path / "train.py").write_text(script)
    assert ("FSDP201" in invoke("check", "-n", cwd=tmp_path).stdout) is found
