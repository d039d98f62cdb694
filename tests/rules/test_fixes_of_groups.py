"""Which modules the fixes put into one call of `fully_shard`, or into one of their own."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, mended

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 1)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.bn(self.conv(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(16, 4)
        self.old = nn.Linear(4, 16, bias=False)
        self.stem = Stem()
        self.stems = nn.ModuleList([Stem(), Stem()])
        self.last = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 16, bias=False)

    def forward(self, x):
        x = self.stem(self.emb(x).mT)
        for stem in self.stems:
            x = stem(x)
        x = self.last(x).mT
        return self.head(x) + self.old(x)

dist.init_process_group("gloo")
low = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
net = Net()
"""
TAIL = "net(torch.randint(0, 16, (2, 3))).sum().backward()\n"
TIE = "net.head.weight = net.emb.weight\n"
ROOT = "fully_shard(net)\n"


def changed(body: str, code: str, rounds: int = 1) -> tuple[str, bool]:
    """The body after the fixes of a rule, and whether the rule still speaks."""
    name = {rule.code: rule.name for rule in knowledge.rules()}[code]
    source = Source("train.py", HEAD + body + TAIL)
    before = list(findings([source], name))
    assert code in {rule.code for rule, _ in before}, "the rule must speak"
    for _ in range(rounds):
        said = [(r, one) for r, one in findings([source], name) if r.code == code]
        (source,) = mended([source], said)
    left = {rule.code for rule, _ in findings([source], name)}
    assert left <= {rule.code for rule, _ in before}, "a fix brings another finding"
    return source.text.removeprefix(HEAD).removesuffix(TAIL), code in left


TOGETHER = {
    "in the first call": (
        TIE + "fully_shard(net.emb)\nfully_shard(net.stem)\nfully_shard(net.head)\n" + ROOT,
        TIE + "fully_shard([net.emb, net.head])\nfully_shard(net.stem)\n" + ROOT,
    ),
    "with their arguments": (
        TIE + "fully_shard(net.emb, reshard_after_forward=False, mp_policy=low)\n"
        "fully_shard(net.head, mp_policy=low, reshard_after_forward=False)\n" + ROOT,
        TIE
        + "fully_shard([net.emb, net.head], reshard_after_forward=False, mp_policy=low)\n"
        + ROOT,
    ),
    "in the second call, above which the other one gets its name": (
        TIE + "fully_shard(net.emb)\nlast = net.head\nfully_shard(last)\n" + ROOT,
        TIE + "last = net.head\nfully_shard([net.emb, last])\n" + ROOT,
    ),
    "out of the root": (
        TIE + "fully_shard(net.head, reshard_after_forward=False)\n" + ROOT,
        TIE + "fully_shard([net.head, net.emb], reshard_after_forward=False)\n" + ROOT,
    ),
    "tied before they are sharded": (
        ROOT + "net(torch.randint(0, 16, (2, 3)))\nif low:\n    " + TIE,
        "if low:\n    " + TIE + ROOT + "net(torch.randint(0, 16, (2, 3)))\n",
    ),
}
APART = {
    "other arguments": TIE + "fully_shard(net.emb, mp_policy=low)\nfully_shard(net.head)\n" + ROOT,
    "other arguments of the root": TIE + "fully_shard(net.emb, mp_policy=low)\n" + ROOT,
    "in a loop": TIE + "for part in (net.emb, net.head):\n    fully_shard(part)\n" + ROOT,
    "in another block": TIE + "if low:\n    fully_shard(net.emb)\nfully_shard(net.head)\n" + ROOT,
    "in two functions": "def one(net):\n    fully_shard(net.emb)\n\n"
    "def two(net):\n    fully_shard(net.head)\n\n" + TIE + "one(net)\ntwo(net)\n" + ROOT,
    "used afterwards": TIE + "fully_shard(net.emb)\nhead = fully_shard(net.head)\n" + ROOT,
    "one name for both": TIE + "m = net.emb\nfully_shard(m)\nm = net.head\nfully_shard(m)\n" + ROOT,
    "tied late across groups": "fully_shard(net.emb)\n"
    + ROOT
    + "net(torch.randint(0, 16, (2, 3)))\n"
    + TIE,
}


@pytest.mark.parametrize(("before", "after"), TOGETHER.values(), ids=TOGETHER)
def test_both_ends_of_a_weight_come_into_one_call(before: str, after: str) -> None:
    assert changed(before, "FSDP214") == (after, False)


@pytest.mark.parametrize("body", APART.values(), ids=APART)
def test_ends_that_no_one_call_can_take_stay_apart(body: str) -> None:
    assert changed(body, "FSDP214") == (body, True)


def test_three_ends_come_into_one_call_one_after_the_other() -> None:
    tie = TIE + "net.old.weight = net.emb.weight\n"
    body = tie + "fully_shard(net.emb)\nfully_shard(net.head)\nfully_shard(net.old)\n" + ROOT
    after, left = changed(body, "FSDP214", rounds=2)
    assert after == tie + "fully_shard([net.emb, net.head, net.old])\n" + ROOT
    assert not left


WALK = """\
{0}for norm in {1}.modules():
{0}    if isinstance(norm, nn.BatchNorm1d):
{0}        fully_shard(norm{2})
"""
STEMS = "fully_shard(net.stem)\nfor stem in net.stems:\n    fully_shard(stem)\n"
OWN_GROUPS = {
    "all below the root": (
        "fully_shard(net, mp_policy=low, reshard_after_forward=False)\n",
        WALK.format("", "net", ", reshard_after_forward=False")
        + "fully_shard(net, mp_policy=low, reshard_after_forward=False)\n",
    ),
    "out of a dictionary": (
        'kw = {"mp_policy": low}\nfully_shard(net.stem, **kw)\nfully_shard(net)\n',
        'kw = {"mp_policy": low}\n'
        + WALK.format("", "net.stem", ', **{**kw, "mp_policy": MixedPrecisionPolicy()}')
        + "fully_shard(net.stem, **kw)\nfully_shard(net)\n",
    ),
    "in a loop": (
        "for stem in net.stems:\n    fully_shard(stem, mp_policy=low)\nfully_shard(net)\n",
        "for stem in net.stems:\n"
        + WALK.format("    ", "stem", "")
        + "    fully_shard(stem, mp_policy=low)\nfully_shard(net)\n",
    ),
    "by name, beside others that are sharded": (
        STEMS + "fully_shard(net, mp_policy=low)\n",
        STEMS + "fully_shard(net.last)\nfully_shard(net, mp_policy=low)\n",
    ),
}
NO_GROUPS = {
    "the call is for the norm": "for one in (net.stem.conv, net.stem.bn):\n"
    "    fully_shard(one, mp_policy=low)\nfully_shard(net)\n",
    "without a name of its own": "tower = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))\n"
    "fully_shard(tower[0])\nfully_shard(tower, mp_policy=low)\ntower(torch.randn(3, 4)).sum().backward()\n",
    "in an expression": "units = [fully_shard(s, mp_policy=low) for s in net.stems]\nfully_shard(net)\n",
    "of several": "fully_shard([net.stem, net.stems[0]], mp_policy=low)\nfully_shard(net)\n",
}


@pytest.mark.parametrize(("before", "after"), OWN_GROUPS.values(), ids=OWN_GROUPS)
def test_norms_get_groups_of_their_own(before: str, after: str) -> None:
    assert changed(before, "FSDP240") == (after, False)


@pytest.mark.parametrize("body", NO_GROUPS.values(), ids=NO_GROUPS)
def test_norms_that_might_be_sharded_twice_stay(body: str) -> None:
    assert changed(body, "FSDP240") == (body, True)
