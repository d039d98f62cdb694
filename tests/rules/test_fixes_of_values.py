"""The values that the fixes give to the parameters of models without any, and when they give none."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint.source.source import Source
from tests.evidence.client import run_script
from tests.rules.test_rules import findings, mended

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or not hasattr(os, "fork"), reason="evidence needs torch and fork"
)

HEAD = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

torch.use_deterministic_algorithms(True)
dist.init_process_group("{}")
"""
NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.LayerNorm(4)
        {}

    def forward(self, x):
        return self.two(self.one(x))

{}
with torch.device("meta"):
    net = Net()
"""
SHARD = "fully_shard(net{})\n"
EMPTY = 'net.to_empty(device="{}")\n'
RESET = """\
for module in net.modules():
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
"""
TAIL = """\
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss = net(torch.ones(4, 4)).square().mean()
loss.backward()
optimizer.step()
"""


def changed(body: str, backend: str = "gloo") -> tuple[str, set[str]]:
    """The body after all fixes, and the codes that are left."""
    source = Source("train.py", HEAD.format(backend) + body)
    (after,) = mended([source], list(findings([source])))
    left = {rule.code for rule, _ in findings([after])}
    return after.text.removeprefix(HEAD.format(backend)), left


SCALE = """\
self.scale = nn.Parameter(torch.empty(4))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.scale, 2.0)
"""
OF_ITSELF = """\
self.apply(self.start)

    def start(self, part):
        if isinstance(part, nn.Linear):
            nn.init.constant_(part.weight, 0.5)
"""
FUNCTION = """\
self.apply(start)
"""
START = """\
def start(part):
    if isinstance(part, nn.Linear):
        nn.init.zeros_(part.bias)
"""
SETTINGS = """\
self.width, self.flag, self.names = 4, sys.argv[1:], ["one", "two"]
        self.size = self.width // 2
        self.act = nn.functional.gelu
"""
GIVEN = {
    "whatever the settings": (SETTINGS, "", RESET),
    "by the layers": ("", "", RESET),
    "by a class of the project": (SCALE, "", RESET),
    "by what it applies to itself": (OF_ITSELF, "", RESET + "net.apply(net.start)\n"),
    "by a function": (FUNCTION, START, RESET + "net.apply(start)\n"),
}


@pytest.mark.parametrize(("more", "above", "values"), GIVEN.values(), ids=GIVEN)
def test_each_parameter_gets_a_value(more: str, above: str, values: str) -> None:
    net, shard, empty = NET.format(more, above), SHARD.format(""), EMPTY.format("cpu")
    wanted = net + shard + empty + values + TAIL, set[str]()
    assert changed(net + shard + TAIL) == wanted
    assert changed(net + shard + empty + TAIL) == wanted


def test_one_layer_is_asked_itself() -> None:
    body = 'net = nn.Linear(4, 4, device="meta")\n' + SHARD.format("")
    after, left = changed(body + TAIL)
    assert after == body + EMPTY.format("cpu") + "net.reset_parameters()\n" + TAIL
    assert not left


@pytest.mark.ranks
@needs_torch
def test_the_values_are_those_of_the_constructor(tmp_path: Path) -> None:
    body = NET.format(OF_ITSELF, "") + SHARD.format("") + TAIL
    body = body.replace("optimizer = ", "before = net.one.weight.full_tensor()\noptimizer = ")
    after, _ = changed(
        body + "print(before.unique(), loss.isfinite())\ndist.destroy_process_group()\n"
    )
    script = tmp_path / "train.py"
    script.write_text(HEAD.format("gloo") + after)
    ranks = run_script(script)
    assert [rank.outcome for rank in ranks] == ["ended", "ended"], ranks[0].stderr
    assert {rank.stdout for rank in ranks} == {
        "tensor([0.5000], grad_fn=<Unique2Backward0>) tensor(True)\n"
    }


NOT_GIVEN = {
    "a parameter of its own": "self.scale = nn.Parameter(torch.ones(4))",
    "a buffer of its own": 'self.register_buffer("seen", torch.zeros(4))',
    "a parameter of its own, perhaps": "self.scale = nn.Parameter(torch.empty(4)) if sys.argv[1:] else None",
    "a layer of another library": "import tool\n        self.look = tool.Layer(4)",
    "a layer that torch has changed": "from torch.nn.utils import parametrizations\n"
    "        self.look = parametrizations.weight_norm(nn.Linear(4, 4))",
    "a list of layers of another library": "import tool\n        self.looks = nn.ModuleList([tool.Layer(4)])",
    "what has no name": "for name in sys.argv:\n            setattr(self, name, nn.Parameter(torch.empty(4)))",
    "a plain tensor": "self.seen = torch.arange(4)",
    "a layer of another kind": "self.look = nn.MultiheadAttention(4, 2)",
    "a row that stays zero": "self.words = nn.Embedding(8, 4, padding_idx=0)",
    "a shared weight": "self.three = nn.Linear(4, 4)\n        self.three.weight = self.one.weight",
    "a value of its own": "nn.init.eye_(self.one.weight)",
    "a function that indexes": OF_ITSELF.replace("part.weight,", "part.weight[0],"),
    "a reset that asks": "pass\n\n    def reset_parameters(self, std):\n        pass\n",
    "a reset of another's layer": "pass\n\n    def reset_parameters(self):\n"
    "        nn.init.zeros_(self.one.weight)\n",
    "code that cannot be seen": "import tool\n        tool.start(self)",
}


@pytest.mark.parametrize("more", NOT_GIVEN.values(), ids=NOT_GIVEN)
def test_what_is_not_surely_given_a_value_stays(more: str) -> None:
    body = NET.format(more, "") + SHARD.format("")
    assert changed(body + TAIL)[0] == body + TAIL
    assert changed(body + EMPTY.format("cpu") + TAIL)[0] == body + EMPTY.format("cpu") + TAIL


MESH = ', mesh=init_device_mesh("{}", (2,))'
PLACES = [
    ("nccl", "", "cuda"),
    ("cpu:gloo,cuda:nccl", "", "cuda"),
    ("nccl", ", offload_policy=CPUOffloadPolicy()", "cpu"),
    ("gloo", MESH.format("cuda"), "cuda"),
    ("gloo", MESH.format("cpu"), "cpu"),
]


@pytest.mark.parametrize(("backend", "more", "device"), PLACES)
def test_memory_is_where_the_shards_belong(backend: str, more: str, device: str) -> None:
    net, shard = NET.format("", ""), SHARD.format(more)
    after, left = changed(net + shard + TAIL, backend)
    assert after == net + shard + EMPTY.format(device) + RESET + TAIL
    assert "FSDP215" not in left


NOWHERE = {
    "an unknown backend": SHARD.format("").replace("fully", "dist.init_process_group()\nfully"),
    "a mesh from elsewhere": "import meshes\nfully_shard(net, mesh=meshes.make())\n",
    "other arguments": "import settings\nfully_shard(net, **settings.sharding())\n",
    "in a list": "[fully_shard(one) for one in [net]]\n",
    "only a part of it": "net.two = nn.LayerNorm(4)\n" + SHARD.format(""),
}


@pytest.mark.parametrize("shard", NOWHERE.values(), ids=NOWHERE)
def test_memory_is_not_given_where_its_place_is_not_known(shard: str) -> None:
    body = NET.format("", "") + shard + TAIL
    assert changed(body)[0] == body


def test_memory_is_not_given_to_what_may_have_some() -> None:
    lazily = (
        '    with torch.device("meta") if "--lazy" in sys.argv else torch.device("cpu"):\n        '
    )
    body = NET.format("", "").replace('with torch.device("meta"):\n    ', f"if True:\n{lazily}")
    assert changed(body + SHARD.format("") + TAIL)[0] == body + SHARD.format("") + TAIL


PLACED = """\
import sys

import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

dist.init_process_group("nccl")
int8 = "--int8" in sys.argv
model = AutoModelForCausalLM.from_pretrained("gpt2", device_map=MAP)
fully_shard(model)
"""


@pytest.mark.parametrize(("given", "goes"), [('"auto"', True), ('"auto" if int8 else None', False)])
def test_a_map_that_is_a_choice_stays(given: str, goes: bool) -> None:
    """It may be for runs that shard nothing."""
    found = findings([Source("train.py", PLACED.replace("MAP", given))])
    (one,) = [finding for rule, finding in found if rule.code == "FSDP242"]
    assert (one.fix is not None) is goes
