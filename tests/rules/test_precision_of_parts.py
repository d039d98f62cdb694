"""Parts of a model that compute in float32, form by form: where a layer in low precision refuses their output."""

from __future__ import annotations

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, marked, named

MODEL = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        {norm}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(8, 8)

    def forward(self, x):
        {attention}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = RMSNorm(8), Attention()

    def forward(self, x):
        return x + self.attention(self.norm(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def shard(model, high, low):
    for module in model.modules():
        if isinstance(module, ({parts})):
            fully_shard(module, mp_policy=high){mark}
    for block in model.blocks:
        fully_shard(block, mp_policy=low)
    fully_shard(model, mp_policy=low)


dist.init_process_group("gloo")
model = Net()
shard(model, MixedPrecisionPolicy({high}), MixedPrecisionPolicy(param_dtype=torch.bfloat16))
model(torch.randn(4, 8)).sum().backward()
"""
PARTS = {
    "norm": "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight",
    "attention": "return self.wq(x)",
    "high": "param_dtype=torch.float32",
    "parts": "RMSNorm,",
}
BAD: dict[str, dict[str, str]] = {
    "a norm before a linear layer of another class": {},
    "a norm that gives what its input is": {
        "norm": "return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, True))).type_as(x) * self.weight"
    },
}
FINE = {
    "an output dtype": {"high": "param_dtype=torch.float32, output_dtype=torch.bfloat16"},
    "inputs that are not cast": {"high": "param_dtype=torch.float32, cast_forward_inputs=False"},
    "a norm that casts": {"norm": "return (x * self.weight).to(torch.bfloat16)"},
    "a norm of a library": {"norm": "return fused_norm(x, self.weight)"},
    "a cast on the way": {"attention": "return self.wq(x.bfloat16())"},
    "autocast": {"attention": 'with torch.autocast("cuda"):\n            return self.wq(x)'},
    "the layer in float32 too": {"parts": "RMSNorm, Attention"},
}


@pytest.mark.parametrize("changes", BAD.values(), ids=BAD)
def test_a_layer_in_low_precision_refuses_float32(changes: dict[str, str]) -> None:
    says_what_it_marks(changes, "  # expect: FSDP255")


@pytest.mark.parametrize("changes", FINE.values(), ids=FINE)
def test_what_casts_or_may_cast_is_fine(changes: dict[str, str]) -> None:
    says_what_it_marks(changes, "")


def says_what_it_marks(changes: dict[str, str], mark: str) -> None:
    """The program with some of its parts exchanged gives the findings that its comments expect, and no other."""
    sources = [Source("train.py", MODEL.format(**{**PARTS, **changes}, mark=mark))]
    assert named(list(findings(sources))) == marked(sources, "expect")
