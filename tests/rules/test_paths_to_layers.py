"""Trainers that name what they shard by paths, or put the layers back where they were."""

from __future__ import annotations

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings

HEAD = """\
import argparse
from functools import reduce

import torch
import torch.distributed as dist
from elsewhere import start_profiler
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(depth)])
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def plan(depth):
    paths = [("embed", False)]
    for number in range(depth):
        paths.append((f"layers.{number}", True))
    return paths


def get_module(model, path):
    return reduce(getattr, path.split(sep="."), model)


def set_module(model, path, value):
    names = path.split(sep=".")
    setattr(reduce(getattr, names[:-1], model), names[-1], value)


parser = argparse.ArgumentParser()
parser.add_argument("--depth", type=int)
parser.add_argument("--resume")
parser.add_argument("--start-from")
parser.add_argument("--teacher")
args = parser.parse_args()
dist.init_process_group("nccl")
with torch.device("meta"):
    model = Net(args.depth)
"""
WAYS = {
    "reduce over a path": """\
for path, free in plan(args.depth):
    fully_shard(get_module(model, path), reshard_after_forward=free)
""",
    "put back by a path": """\
for path, free in plan(args.depth):
    set_module(model, path, fully_shard(get_module(model, path), reshard_after_forward=free))
""",
    "get_submodule": """\
fully_shard(model.embed)
for number in range(args.depth):
    fully_shard(model.get_submodule(f"layers.{number}"))
""",
    "by the number of enumerate": """\
fully_shard(model.embed)
for number, layer in enumerate(model.layers):
    setattr(model.layers, str(number), fully_shard(model.layers[number]))
""",
    "put back by the number": """\
fully_shard(model.embed)
for number, layer in enumerate(model.layers):
    model.layers[number] = fully_shard(layer)
""",
}
TRAIN = """\
optimizer = torch.optim.AdamW(model.parameters())
for batch in args.batches:
    {call}.sum().backward()
    optimizer.step()
"""


def said(code: str, text: str) -> list[str]:
    return [f.message for rule, f in findings([Source("train.py", text)]) if rule.code == code]


@pytest.mark.parametrize("way", WAYS)
def test_what_a_path_leads_to_is_sharded(way: str) -> None:
    text = HEAD + WAYS[way] + 'model.to_empty(device="cuda")\n' + TRAIN.format(call="model(batch)")
    (message,) = said("FSDP206", text)
    assert "`model.head`" in message
    assert not said("FSDP206", text.replace("optimizer = ", "fully_shard(model)\noptimizer = "))


@pytest.mark.parametrize("way", WAYS)
def test_layers_put_back_get_no_memory(way: str) -> None:
    text = HEAD + WAYS[way] + "fully_shard(model)\n" + TRAIN.format(call="model(batch)")
    assert said("FSDP215", text)
    assert not said(
        "FSDP215", text.replace("optimizer = ", 'model.to_empty(device="cuda")\noptimizer = ')
    )


def test_another_layer_in_its_place_has_memory() -> None:
    text = (
        HEAD
        + "model.layers[0] = nn.Linear(8, 8)\nfully_shard(model)\n"
        + TRAIN.format(call="model.layers[0](batch)")
    )
    assert not said("FSDP215", text)


FLAGS = """\
fully_shard(model)
if args.start_from is not None:
    model.load_state_dict(torch.load(args.start_from), assign=True)
if args.resume is not None:
    model.load_state_dict(torch.load(args.resume), assign=True)
if args.teacher is not None:
    model.head = args.library.head()
"""


def test_where_none_of_three_flags_is_set_nothing_gives_memory() -> None:
    text = HEAD + FLAGS + TRAIN.format(call="model(batch)")
    assert said("FSDP215", text)
    always = FLAGS.replace("if args.teacher is not None:\n    ", "")
    assert not said("FSDP215", HEAD + always + TRAIN.format(call="model(batch)"))


def test_a_forward_in_a_profiler_hides_no_other() -> None:
    look = "if args.teacher is not None:\n    start_profiler(model)\n    model(args.batches[0])\n"
    text = HEAD + "fully_shard(model)\n" + look + TRAIN.format(call="model(batch)")
    assert said("FSDP215", text)


def test_memory_that_is_set_later_is_no_memory_before() -> None:
    later = """\
for parameter in args.other.parameters():
    parameter.data = parameter.data.to(torch.bfloat16)
"""
    text = HEAD + "fully_shard(model)\n" + TRAIN.format(call="model(batch)")
    assert said("FSDP215", text + later)
    assert not said(
        "FSDP215", HEAD + later + "fully_shard(model)\n" + TRAIN.format(call="model(batch)")
    )


def test_one_layer_with_memory_leaves_the_others_without() -> None:
    text = HEAD + 'fully_shard(model)\nmodel.head.to_empty(device="cuda")\nmodel.to("cuda")\n'
    assert said("FSDP250", text)
    assert not said("FSDP250", text.replace("model.head.to_empty", "model.to_empty"))


DICTIONARY = """\
class Tower(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.layers = nn.ModuleDict({str(i): nn.Linear(8, 8) for i in range(depth)})
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        return self.norm(x)


dist.init_process_group("gloo")
model = Tower(argparse.ArgumentParser().parse_args().depth)
for path in ["embed", *(f"layers.{name}" for name in model.layers)]:
    fully_shard(reduce(getattr, path.split("."), model))
{ROOT}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("root", ["", "fully_shard(model)"])
def test_keys_of_a_dictionary_of_modules_are_words_of_paths(root: str) -> None:
    source = Source("train.py", HEAD + DICTIONARY.replace("{ROOT}", root))
    assert {rule.code for rule, _ in findings([source])} == (set() if root else {"FSDP206"})
