"""Checkpoints in the shapes of whole programs: settings objects, helpers, files beside (FSDP328, FSDP303), form by form."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, marked, named

HEAD = """\
import json
import os
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())


def train(save):
    for step in range(100):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        save(step)


"""

FORMS = {
    "a folder of a data class": """
        @dataclass
        class Config:
            out: str = "runs"

        class Checkpointer:
            def __init__(self, config):
                self.folder = config.out

            def save(self, step):
                path = os.path.join(self.folder, "last")
                dcp.save({"model": model.state_dict()}, checkpoint_id=path)  # expect: FSDP328

        config = Config(**json.load(open(sys.argv[1]))) if len(sys.argv) > 1 else Config()
        train(Checkpointer(config).save)
        """,
    "a folder of a namespace": """
        config = SimpleNamespace(**json.load(open(sys.argv[1])))

        def save(step):
            dcp.save({"model": model.state_dict()}, checkpoint_id=f"{config.out}/best")  # expect: FSDP328

        train(save)
        """,
    "a folder of a dictionary": """
        config = {k: v for k, v in json.load(open(sys.argv[1])).items() if not k.startswith("_")}

        def save(step):
            path = os.path.join(config["out"], "latest")
            dcp.save({"model": model.state_dict()}, checkpoint_id=path)  # expect: FSDP328

        train(save)
        """,
    "a dictionary that tells the step": """
        run = {"out": "runs"}

        def save(step):
            run["path"] = f"runs/{step}"
            dcp.save({"model": model.state_dict()}, checkpoint_id=run["path"])

        train(save)
        """,
    "the step in the name of a data class's folder": """
        @dataclass
        class Config:
            out: str = "runs"

        config = Config()

        def save(step):
            dcp.save({"model": model.state_dict()}, checkpoint_id=os.path.join(config.out, str(step)))

        train(save)
        """,
    "a folder that is set for each save": """
        class Run:
            folder = "runs"

        run = Run()

        def save(step):
            run.folder = f"runs/{step}"
            dcp.save({"model": model.state_dict()}, checkpoint_id=os.path.join(run.folder, "model"))

        train(save)
        """,
    "a property that counts": """
        class Run:
            def __init__(self):
                self.count = 0

            @property
            def folder(self):
                self.count += 1
                return f"runs/{self.count}"

        run = Run()
        train(lambda step: dcp.save({"model": model.state_dict()}, checkpoint_id=run.folder))
        """,
    "a file of whole weights in a script that saves by DCP": """
        path = sys.argv[1]
        state = torch.load(path, map_location="cpu")
        model.load_state_dict(state)  # expect: FSDP303
        train(lambda step: dcp.save({"model": model.state_dict()}, checkpoint_id=f"runs/{step}"))
        """,
    "a file that the script itself wrote": """
        path = sys.argv[1]
        model.load_state_dict(torch.load(path))
        train(lambda step: torch.save(model.state_dict(), f"runs/{dist.get_rank()}.{step}.pt"))
        """,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_is_judged_in_the_shape_of_a_program(form: str) -> None:
    source = Source("train.py", HEAD + dedent(FORMS[form]))
    said = named(
        [(rule, f) for rule, f in findings([source]) if rule.code in ("FSDP303", "FSDP328")]
    )
    assert said == marked([source], "expect")


RESUMED = """
class Checkpointer:
    def state(self, step):
        return {"model": model.state_dict(), "step": step}

    def save(self, step):
        dcp.save(self.state(step), checkpoint_id=f"runs/{step}")

    def load(self, path):
        state = self.state(0)
        dcp.load(state, checkpoint_id=path)
        {AFTER}


keeper = Checkpointer()
start = keeper.load(sys.argv[1])
train(keeper.save)
"""


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ("return 0", "FSDP322"),
        ('model.load_state_dict(state["model"])', "FSDP322"),
        ('return state["step"]', ""),
        ("return state", ""),
        ('return state.pop("step")', ""),
        ("self.loaded = state", ""),
    ],
)
def test_a_number_in_the_dictionary_of_a_helper_is_taken_out(after: str, code: str) -> None:
    source = Source("train.py", HEAD + RESUMED.replace("{AFTER}", after))
    assert {rule.code for rule, _ in findings([source])} == ({code} if code else set())
