"""Parameters that a module holds beside its submodules, and what initialises them (FSDP251), form by form."""

from __future__ import annotations

from textwrap import indent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings

HEAD = """\
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

from elsewhere import initialise


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.gamma = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.linear(x) * self.gamma


def visit(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight)
        nn.init.zeros_(m.bias)
    elif isinstance(m, (Block, Net)):
        nn.init.ones_(m.gamma)


def visit_layers(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight)
        nn.init.zeros_(m.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(8))
        self.token = nn.Parameter(torch.zeros(8))
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        x = x * self.gamma + self.token
        for block in self.blocks:
            x = block(x)
        return x

    @torch.no_grad()
    def init_weights(self):
{INIT}


dist.init_process_group("gloo")
with torch.device("meta"):
    model = Net()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
model.to_empty(device="cpu")
{START}
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(10):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LAYERS = """\
for m in self.modules():
    if isinstance(m, nn.Linear):
        m.reset_parameters()
"""
OWN = "nn.init.ones_(self.gamma)\nnn.init.zeros_(self.token)\n"
BLOCKS = "for block in self.blocks:\n    nn.init.ones_(block.gamma)\n"

LEFT_OUT = {
    "one of the root": LAYERS + BLOCKS + "nn.init.ones_(self.gamma)\n",
    "both of the root": LAYERS + BLOCKS,
    "those of the blocks": LAYERS + OWN,
    "what a function does to each layer": "self.apply(visit_layers)\n" + OWN,
    "one that another class has too": "self.apply(visit)\n",
    "in place": LAYERS + BLOCKS + "self.gamma.fill_(1.0)\n",
}
REACHED = {
    "each by its name": LAYERS + BLOCKS + OWN,
    "in place": LAYERS + BLOCKS + "self.gamma.fill_(1.0)\nself.token.zero_()\n",
    "their data": LAYERS + BLOCKS + "self.gamma.data.fill_(1.0)\nself.token.data.zero_()\n",
    "in a loop over both": LAYERS + BLOCKS + "for p in (self.gamma, self.token):\n    p.zero_()\n",
    "all parameters": "for p in self.parameters():\n    nn.init.normal_(p)\n",
    "all parameters by name": "for n, p in self.named_parameters():\n    p.normal_()\n",
    "the root's alone": LAYERS
    + BLOCKS
    + "for p in self.parameters(recurse=False):\n    p.zero_()\n",
    "a function from elsewhere": "initialise(self)\n",
    "what a function does to each module": "self.apply(visit)\nself.token.zero_()\n",
    "copied": LAYERS + BLOCKS + "self.gamma.copy_(torch.ones(8))\nself.token.copy_(self.gamma)\n",
    "new ones": LAYERS
    + BLOCKS
    + "self.gamma = nn.Parameter(torch.ones(8))\nself.token = nn.Parameter(torch.ones(8))\n",
}


def codes(init: str, start: str) -> set[str]:
    text = HEAD.replace("{INIT}", indent(init or "pass", " " * 8)).replace("{START}", start)
    return {rule.code for rule, _ in findings([Source("t.py", text)]) if rule.code == "FSDP251"}


@pytest.mark.parametrize("form", LEFT_OUT)
def test_a_parameter_beside_submodules_is_left_out(form: str) -> None:
    assert codes(LEFT_OUT[form], "model.init_weights()") == {"FSDP251"}


@pytest.mark.parametrize("form", REACHED)
def test_a_parameter_beside_submodules_is_reached(form: str) -> None:
    assert not codes(REACHED[form], "model.init_weights()")


@pytest.mark.parametrize(
    "start",
    [
        'dcp.load({"model": model.state_dict()}, checkpoint_id="c")',
        "initialise(model)",
        "for m in model.modules():\n    initialise(m)",
        "model.load_state_dict(torch.load('m.pt'), assign=True)",
    ],
)
def test_what_gives_the_whole_model_values(start: str) -> None:
    assert not codes("", start)
