"""What the configuration tells of the project's functions, and what rules make of it."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.events import Collective, Forward, OptimizerBuilt, Sharded
from fsdp2lint.model.hints import Hints
from fsdp2lint.model.trace import Trace
from fsdp2lint.project.project import Project
from fsdp2lint.source.prefilter import tells
from fsdp2lint.source.source import Source
from tests.support.running import invoke

MODEL = """\
import torch
from torch import nn
from acme import parallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


"""

LATE = """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
model = parallel.apply(model)
model(torch.ones(4)).sum().backward()
optimizer.step()
"""

BELOW_GUARD = """\
if parallel.is_chief():
    parallel.sync(torch.ones(4))
"""


def trace_of(text: str, **hints: Any) -> Trace:
    project = Project.of([Source("train.py", MODEL + text)], hints=Hints(**hints))
    return next(iter(traces(project)))


def codes(folder: Path, *args: str) -> list[str]:
    shown = invoke("check", "-f", "json", *args, cwd=folder)
    return [one["code"] for one in json.loads(shown.stdout)]


def setting(folder: Path, **hints: list[str]) -> None:
    lines = [f"{key.replace('_', '-')} = {json.dumps(names)}" for key, names in hints.items()]
    (folder / "fsdp2lint.toml").write_text("[knowledge]\n" + "\n".join(lines) + "\n")


def test_a_function_outside_that_shards() -> None:
    trace = trace_of(LATE, shards=("acme.parallel.apply",))
    (sharded,) = trace.of(Sharded)
    assert sharded.modules[0].words() == "model"
    assert not list(trace_of(LATE).of(Sharded))


def test_what_it_shards_besides_is_not_known() -> None:
    """Only what is wrong may be said, not that something is missing: the blocks may be sharded inside."""
    trace = trace_of(LATE, shards=("acme.parallel.apply",))
    assert not trace.known(next(iter(trace.of(Sharded))).modules[0])


def test_it_returns_the_model() -> None:
    text = "model = Net()\nmodel = parallel.apply(model)\nmodel.forward(torch.ones(4))\n"
    trace = trace_of(text, shards=("acme.parallel.apply",))
    (sharded,) = trace.of(Sharded)
    assert next(iter(trace.of(Forward))).module is sharded.modules[0]


def test_rules_hear_of_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MODEL + LATE + "# fully_shard\n")
    assert codes(tmp_path) == []
    setting(tmp_path, shards=["acme.parallel.apply"])
    assert codes(tmp_path) == ["FSDP201"]


@pytest.mark.parametrize("name", ["acme.parallel.apply", "parallel.apply"])
def test_a_function_of_the_project_is_not_looked_into(tmp_path: Path, name: str) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "__init__.py").write_text("")
    (tmp_path / "acme" / "parallel.py").write_text(
        "import torch\n\n\ndef apply(model):\n    return REGISTRY['fsdp2'](model)\n"
    )
    (tmp_path / "train.py").write_text(MODEL + LATE + "# fully_shard\n")
    assert codes(tmp_path) == []
    setting(tmp_path, shards=[name])
    assert codes(tmp_path) == ["FSDP201"]


def test_another_module_of_that_name_is_not_meant(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "__init__.py").write_text("")
    (tmp_path / "acme" / "parallel.py").write_text(
        "import torch\n\n\ndef apply(model):\n    return model\n"
    )
    (tmp_path / "train.py").write_text(MODEL + LATE + "# fully_shard\n")
    setting(tmp_path, shards=["other.parallel.apply", "acme.parallel.Thing.apply", "apply"])
    assert codes(tmp_path) == []


def test_a_method() -> None:
    text = dedent(
        """\
        class Engine:
            def wrap(self, model):
                return self.strategy(model)


        model = Net()
        Engine().wrap(model)
        """
    )
    assert list(trace_of(text, shards=("train.Engine.wrap",)).of(Sharded))
    assert not list(trace_of(text, shards=("train.wrap",)).of(Sharded))


def test_a_function_that_builds_an_optimizer(tmp_path: Path) -> None:
    text = (
        "from torch.distributed.fsdp import fully_shard\n"
        "model = Net()\noptimizer = parallel.optimizer_for(model, 0.1)\n"
        "for block in model.blocks:\n    fully_shard(block)\nfully_shard(model)\n"
        "model(torch.ones(4)).sum().backward()\noptimizer.step()\n"
    )
    (built,) = trace_of(text, optimizers=("acme.parallel.optimizer_for",)).of(OptimizerBuilt)
    assert [p.of.words() for p in built.over] == ["model"]
    (tmp_path / "train.py").write_text(MODEL + text)
    assert codes(tmp_path) == []
    setting(tmp_path, optimizers=["acme.parallel.optimizer_for"])
    assert codes(tmp_path) == ["FSDP201"]


def test_an_optimizer_over_parameters() -> None:
    text = "model = Net()\nparallel.build([{'params': model.blocks.parameters()}])\n"
    (built,) = trace_of(text, optimizers=("acme.parallel.build",)).of(OptimizerBuilt)
    assert [p.of.words() for p in built.over] == ["model.blocks"]


def test_guards_and_collectives(tmp_path: Path) -> None:
    hints = {"rank_guards": ("acme.parallel.is_chief",), "collectives": ("acme.parallel.sync",)}
    (event,) = trace_of(BELOW_GUARD, **hints).of(Collective)
    assert "rank" in event.guards.words()
    (tmp_path / "train.py").write_text(MODEL + BELOW_GUARD + "# fully_shard\n")
    assert codes(tmp_path) == []
    setting(tmp_path, rank_guards=["acme.parallel.is_chief"], collectives=["acme.parallel.sync"])
    assert codes(tmp_path) == ["FSDP401"]


@pytest.mark.parametrize("name", ["acme/parallel.py:apply", "acme.parallel.apply()", "a b", ""])
def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    setting(tmp_path, shards=["acme.parallel.apply", name])
    shown = invoke("check", "-f", "concise", cwd=tmp_path)
    assert shown.returncode == 2
    assert "`knowledge.shards[1]`: expected a dotted name such as" in shown.stdout


def test_a_program_that_calls_what_it_is_told_of_is_looked_at(tmp_path: Path) -> None:
    """It says nothing of FSDP: the function that shards lies in an installed package."""
    (tmp_path / "train.py").write_text(MODEL + LATE)
    (tmp_path / "main.py").write_text("import train  # a part of a project\n\ntrain.go()\n")
    assert codes(tmp_path) == []
    setting(tmp_path, shards=["acme.parallel.apply"])
    assert codes(tmp_path) == codes(tmp_path) == ["FSDP201"]
    named = ("--stdin-filename", "train.py", "-f", "json")
    shown = invoke("check", "-", *named, cwd=tmp_path, text=MODEL + LATE)
    assert [one["code"] for one in json.loads(shown.stdout)] == ["FSDP201"]
    setting(tmp_path, shards=["acme.other.apply_all"])
    assert codes(tmp_path) == []
    for number in range(80):
        (tmp_path / f"x{number}.py").write_text("x = 1\n")
    assert codes(tmp_path) == []
    setting(tmp_path, shards=["acme.parallel.apply"])
    assert codes(tmp_path) == ["FSDP201"], "whatever the cache knows of the file"


@pytest.mark.parametrize(
    ("text", "hints", "calls"),
    [
        ("from acme.parallel import apply", "acme.parallel.apply", True),
        ("from .parallel import apply", "acme.parallel.apply", True),
        ("from acme import apply", "acme.parallel.apply", True),
        ("model.apply(initialize)", "acme.parallel.apply", False),
        ("apply(model)", "apply", True),
        ("import acme.parallel", "acme.parallel.apply", False),
    ],
)
def test_which_files_may_call_it(text: str, hints: str, calls: bool) -> None:
    assert tells(text.encode(), (hints,)) is calls
