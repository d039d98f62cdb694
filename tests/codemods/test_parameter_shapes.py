"""Parameters of what FSDP1 wraps are flat, by whatever name the script holds the module."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

SCRIPT = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def groups(self):
        decayed, others = [], []
        for p in self.parameters():
            (decayed if p.dim() >= 2 else others).append(p)
        return [{{"params": decayed}}, {{"params": others, "weight_decay": 0.0}}]


net = Net()
{first}model = FSDP(net, use_orig_params=True)
optimizer = torch.optim.AdamW({groups})
"""


@pytest.mark.parametrize(
    ("first", "groups", "left"),
    [
        ("", "model.groups()", 1),
        ("", "model.module.groups()", 1),
        ("", "net.groups()", 1),
        ("groups = net.groups()\n", "groups", 0),
    ],
    ids=["the wrapper", "its module", "the module of before", "before it is wrapped"],
)
def test_a_choice_by_shape(first: str, groups: str, left: int) -> None:
    text = SCRIPT.format(first=first, groups=groups)
    made = migrate((Source("train.py", text),), knowledge.codemods())
    assert made.after[0].text.count("check what this test chooses") == left


SHARDS = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Linear(8, 8), use_orig_params=True)
for p in model.parameters():
    if {test}:
        p.data.mul_(0.9)
"""


@pytest.mark.parametrize(
    ("test", "left"),
    [("p.numel()", 0), ("p.numel() > 0", 0), ("p.numel() != 0", 0), ("p.numel() > 4", 1)],
)
def test_a_test_that_skips_empty_shards_stays(test: str, left: int) -> None:
    made = migrate((Source("train.py", SHARDS.format(test=test)),), knowledge.codemods())
    assert made.after[0].text.count("check what this test chooses") == left
    assert f"if {test}:" in made.after[0].text
