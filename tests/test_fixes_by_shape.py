"""Further fixes of rules, shape by shape: what comes out, and where none is offered."""

from __future__ import annotations

import pytest

from fsdp2lint.source import Source
from tests.test_rules import findings, mended

IMPORTS = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
"""


def after(body: str, code: str) -> tuple[str, bool]:
    """What the fixes of one rule make of a script below its imports, and whether the rule is then silent."""
    source = Source("train.py", IMPORTS + body)
    said = [one for one in findings([source]) if one[0].code == code]
    assert said, f"{code} does not speak of this"
    (new,) = mended([source], said)
    quiet = not any(rule.code == code for rule, _ in findings([new]))
    return new.text, quiet


MIXED = """\
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.block(x))


def shard(module, policy):
    fully_shard(module, mp_policy=policy)


def options(policy):
    return {"mp_policy": policy}


low, high = torch.bfloat16, torch.float32
dist.init_process_group("gloo")
net = Model()
"""
TRAINED = "net(torch.randn(4, 8)).sum().backward()\n"


def test_output_dtype_leaves_by_position() -> None:
    body = (
        "fully_shard(net.block, mp_policy=MixedPrecisionPolicy(low, high, high))\n"
        "fully_shard(net, mp_policy=MixedPrecisionPolicy(low))\n"
    )
    new = body.replace("low, high, high", "low, high")
    assert after(MIXED + body + TRAINED, "FSDP255") == (IMPORTS + MIXED + new + TRAINED, True)


@pytest.mark.parametrize(
    "body",
    [
        # one call for the root and its parts
        "policy = MixedPrecisionPolicy(low, output_dtype=high)\n"
        "shard(net.block, policy)\nshard(net, policy)\n",
        # the policy is in a dictionary that both share
        "given = options(MixedPrecisionPolicy(low, output_dtype=high))\n"
        "fully_shard(net.block, **given)\nfully_shard(net, **given)\n",
    ],
)
def test_output_dtype_stays(body: str) -> None:
    assert after(MIXED + body + TRAINED, "FSDP255") == (IMPORTS + MIXED + body + TRAINED, False)
