"""A file is mapped only where the script does not write it again: who reads the mapping then dies of a bus error."""

from __future__ import annotations

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, mended

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import *
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
"""
WHOLE = 'model.load_state_dict(torch.load("last.pt"))\n'
EVERY = """\
options = StateDictOptions(full_state_dict=True)
set_model_state_dict(model, torch.load("last.pt"), options=options)
"""
TRAIN = "model(torch.randn(2, 8)).sum().backward()\n"
SAVE = """\
whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
if dist.get_rank() == 0:
    torch.save(whole, {})
"""


def fixed(text: str) -> str:
    """A script with the fixes of its findings made."""
    source = Source("train.py", HEAD + text)
    return mended([source], list(findings([source])))[0].text


@pytest.mark.parametrize("load", [WHOLE, EVERY])
@pytest.mark.parametrize("after", ["", SAVE.format('"next.pt"')])
def test_a_file_that_stays_is_mapped(load: str, after: str) -> None:
    assert "mmap=True" in fixed(load + TRAIN + after)


@pytest.mark.parametrize("load", [WHOLE, EVERY])
@pytest.mark.parametrize("path", ['"last.pt"', "input()"])
def test_a_file_that_may_be_written_again_is_not(load: str, path: str) -> None:
    assert "mmap=True" not in fixed(load + TRAIN + SAVE.format(path))
