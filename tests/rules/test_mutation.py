"""The benchmark of ``benchmarks/mutation``: its operators, and the measure on a made-up program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import libcst as cst
import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.accuracy import Recall, recall_sentence, recalled

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "mutation"
sys.path.insert(0, str(FOLDER))
from operators import OPERATORS, Operator  # noqa: E402

PROGRAM = """\
import copy

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x

    def init_weights(self):
        for layer in self.layers:
            layer.reset_parameters()


def evaluate(model, x):
    return model(x).sum()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    with torch.device("meta"):
        model = Stack()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy())
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy())
    model.to_empty(device="cpu")
    model.init_weights()
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(64, 16))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            loss = model(x).square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        evaluate(model, x)
    state = {"model": get_model_state_dict(model)}
    dcp.save(state, checkpoint_id="run")
    dcp.load({"model": state["model"]}, checkpoint_id="run")
    set_model_state_dict(model, state["model"])
    print(model.layers[0].weight.full_tensor().sum())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_an_operator_plants_its_mistake(operator: Operator) -> None:
    tree = cst.parse_module(PROGRAM)
    changed = [mutant.code for _, mutant in operator.find(tree)]
    assert changed
    for text in changed:
        assert text != PROGRAM
        compile(text, "mutant.py", "exec")
    assert tree.code == PROGRAM


def test_operators_expect_rules_that_there_are() -> None:
    codes = {rule.code for rule in knowledge.rules()}
    assert {code for one in OPERATORS for code in one.expected} <= codes
    assert len({one.name for one in OPERATORS}) == len(OPERATORS)
    assert all(one.says for one in OPERATORS)


def test_the_programs_are_pinned_and_not_here() -> None:
    listed = json.loads((FOLDER / "programs.json").read_text())
    assert len({one["name"] for one in listed}) == len(listed) >= 12
    assert all(len(one["commit"]) == 40 for one in listed)
    assert not list(FOLDER.rglob("*train*.py"))


def test_the_measure_counts_what_is_found(tmp_path: Path) -> None:
    clone = tmp_path / "clones" / "someone__something"
    clone.mkdir(parents=True)
    (clone / "train.py").write_text(PROGRAM)
    listed = tmp_path / "programs.json"
    one = {"name": "made-up", "repository": "someone/something", "commit": "0" * 40}
    listed.write_text(json.dumps([{**one, "paths": ["train.py"], "mutated": ["train.py"]}]))
    results = tmp_path / "results.jsonl"
    command = [sys.executable, str(FOLDER / "mutate.py"), "--checkouts", str(clone.parent)]
    command += ["--programs", str(listed), "--results", str(results)]
    command += [
        "--operator",
        "optimizer-first",
        "--operator",
        "root-first",
        "--operator",
        "no-sync",
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    seen = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(r["operator"], r["found"]) for r in seen] == [
        ("optimizer-first", True),
        ("root-first", True),
        ("no-sync", True),
    ], run.stderr
    assert "3 of 3 mutants of 1 programs were found (100%)." in run.stdout
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert len(results.read_text().splitlines()) == 3, again.stderr


def test_pages_say_how_much_a_rule_finds() -> None:
    rules = {rule.code for rule in knowledge.rules()}
    assert set(recalled()) <= rules
    for row in recalled().values():
        assert 0 <= row.found <= row.planted
        assert row.programs >= 1
    some = Recall(planted=12, found=9, programs=4)
    assert recall_sentence(some) == (
        "9 of 12 mistakes of this kind that were planted in 4 public programs were found."
    )
    assert recall_sentence(None) == "No mistake of this kind was planted in public programs."
