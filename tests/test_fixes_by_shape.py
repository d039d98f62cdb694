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


LOST = "with torch.no_grad():\n    net.weight[0].zero_()\n"
BUILT = 'dist.init_process_group("gloo")\nnet = nn.Linear(8, 8)\n'
LOOP = "def shard_all(module):\n    for part in module.children():\n        fully_shard(part)\n\n\n"


@pytest.mark.parametrize(
    "shard",
    [
        "fully_shard(net)\n",
        "net = fully_shard(net)\n",
        "shard_all(net)\nfully_shard(net)\n",
    ],
)
def test_a_lost_write_moves_above_the_sharding(shard: str) -> None:
    head = IMPORTS + LOOP + BUILT
    new = head + LOST + shard
    assert after(new.removeprefix(IMPORTS).replace(LOST + shard, shard + LOST), "FSDP249") == (
        new,
        True,
    )


@pytest.mark.parametrize(
    "body",
    [
        # what is loaded between would be written over
        "fully_shard(net)\nnet.load_state_dict(kept)\n" + LOST,
        # the row is chosen between
        "fully_shard(net)\nrow = 3\nnet.weight.data[row].zero_()\n",
        # other work stands beside it
        "fully_shard(net)\n" + LOST + "    print(net.weight)\n",
        "fully_shard(net)\ntorch.manual_seed(1)\nnn.init.normal_(net.weight[0])\n",
        # it is made of the shard
        "fully_shard(net)\nnn.init.zeros_(net.weight[net.weight.device_mesh.get_local_rank()])\n",
        # the two stand in different functions
        "def shard(net):\n    fully_shard(net)\n    print('sharded')\n    return net\n\n\n"
        "net = shard(net)\n" + LOST,
    ],
)
def test_a_lost_write_stays(body: str) -> None:
    body = BUILT + "kept = net.state_dict()\n" + body
    assert after(body, "FSDP249") == (IMPORTS + body, False)
