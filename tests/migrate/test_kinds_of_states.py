"""A method chooses the kind of state dict: the test goes to each call, and the contexts go."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.migrate.test_units import HEAD, after, made

PROGRAM = (
    HEAD
    + """\
import sys
from contextlib import ExitStack

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullStateDictConfig, StateDictType


class Manager:
    def __init__(self, kind):
        self.kind = kind

    def _context(self, model):
CHOICE

    def save(self, model):
ENTERED
        if self.kind == "shards":
            dcp.save(state, checkpoint_id="folder")
        else:
            torch.save(state, "file.pt")


def main(kind):
    dist.init_process_group("nccl")
    model = FSDP(nn.Linear(8, 8), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 8)).sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    Manager(kind).save(model)


main(sys.argv[1])
"""
)
WHOLE = (
    "FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(False, False))"
)
SHARDS = "FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)"
BELOW = f"""\
        if self.kind == "shards":
            return {SHARDS}
        return {WHOLE}"""
ELSE = f"""\
        if self.kind != "shards":
            return {WHOLE}
        else:
            return {SHARDS}"""
STACK = """\
        with ExitStack() as stack:
            stack.enter_context(self._context(model))
            state = {"model": model.state_dict()}"""
WITH = """\
        with self._context(model):
            state = {"model": model.state_dict()}"""


@pytest.mark.parametrize("choice", [BELOW, ELSE])
@pytest.mark.parametrize("entered", [STACK, WITH])
def test_the_choice_goes_to_the_call(tmp_path: Path, choice: str, entered: str) -> None:
    program = PROGRAM.replace("CHOICE", choice).replace("ENTERED", entered)
    done = made(tmp_path, train=program)
    text = after(done, "train")
    assert done.ledger.manual == []
    assert "state_dict_type" not in text
    assert "_context" not in text
    assert 'full_state_dict=self.kind != "shards"' in text


def test_a_choice_that_a_call_cannot_repeat_stays(tmp_path: Path) -> None:
    """Then nothing of the model is rewritten."""
    choice = BELOW.replace('self.kind == "shards"', "input() == 'shards'")
    done = made(tmp_path, train=PROGRAM.replace("CHOICE", choice).replace("ENTERED", WITH))
    text = after(done, "train")
    assert "model = FSDP(nn.Linear(8, 8), use_orig_params=True)" in text
    assert "    model.clip_grad_norm_(1.0)\n" in text
    clip = next(e for e in done.ledger.entries if e.symbol == "clip_grad_norm_")
    assert "`state_dict_type` stays" in clip.why
