"""Parts of a pipeline that a table of loaders makes and a loop stores under names that a file lists."""

from __future__ import annotations

import pytest

from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.events import OptimizerBuilt, Sharded, Stepped
from fsdp2lint.model.trace import Trace, options
from fsdp2lint.model.values import Instance, Optimizer, Value
from fsdp2lint.project.project import Project
from fsdp2lint.source.source import Source

HEAD = """
import json
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 8)

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 8)

class NetLoader:
    def load(self, path):
        net = Net()
        fully_shard(net)
        return net

class DecoderLoader:
    def load(self, path):
        return Decoder()

""" + "".join(
    f"class Reader{n}:\n    def load(self, path):\n        return {n}\n" for n in range(8)
)

READERS = ", ".join(f'"reader{n}": (Reader{n}, "files")' for n in range(8))

OBJECTS = f"""
LOADERS = {{{READERS}, "decoder": (DecoderLoader, "torch"), "net": (NetLoader, "torch"), "ref": (NetLoader, "torch")}}

def load(name, library):
    if name not in LOADERS:
        raise KeyError(name)
    loader, expected = LOADERS[name]
    assert library == expected
    return loader().load(name)
"""

FUNCTIONS = (
    """
def make_net(path):
    net = Net()
    fully_shard(net)
    return net

def make_decoder(path):
    return Decoder()

"""
    + "".join(f"def read{n}(path):\n    return {n}\n" for n in range(8))
    + f"""
BUILDERS = {{{", ".join(f'"reader{n}": read{n}' for n in range(8))}, "decoder": make_decoder, "net": make_net}}

def load(name, library):
    return BUILDERS[name](library)
"""
)

CLASS = """
class Pipeline:
    def __init__(self, index):
        self.parts = self.loaded(index)

    def loaded(self, index):
        found = {}
        for name, spec in index.items():
            if not isinstance(spec, list):
                continue
            found[name] = load(name, spec[0])
        return found

    def part(self, name, default=None):
        if name not in self.parts:
            return default
        return self.parts[name]

    def train(self):
        net = self.part("net")
        optimizer = torch.optim.AdamW(list(net.parameters()))
        net(torch.ones(8)).sum().backward()
        optimizer.step()

Pipeline(json.load(open("index.json"))).train()
"""

COMPREHENSION = """
def main(index):
    parts = {name: load(name, library) for name, library in index.items()}
    optimizer = torch.optim.SGD(parts["net"].parameters(), lr=1.0)
    parts["net"](torch.ones(8)).sum().backward()
    optimizer.step()

main(json.load(open("index.json")))
"""


def _trace(text: str) -> Trace:
    found = list(traces(Project.of([Source("train.py", HEAD + text)])))
    return next(trace for trace in found if trace.of(Stepped))


def _classes(value: Value) -> set[str]:
    return {one.cls.words() for one in options(value) if isinstance(one, Instance)}


@pytest.mark.parametrize("table", [OBJECTS, FUNCTIONS])
@pytest.mark.parametrize("use", [CLASS, COMPREHENSION])
def test_a_part_read_by_its_name_is_what_the_loop_made_under_it(table: str, use: str) -> None:
    trace = _trace(table + use)
    sharded = {event.module for event in trace.of(Sharded)}  # one a round of the loop
    (built,) = trace.of(OptimizerBuilt)
    (model,) = {model for over in built.over for model in options(over.of)}
    assert model in sharded
    assert _classes(model) == {"Net"}
    assert all(
        isinstance(one, Optimizer) for e in trace.of(Stepped) for one in options(e.optimizer)
    )


def test_two_names_of_one_loop_are_two_parts() -> None:
    use = CLASS.replace(
        "        optimizer =",
        "        ref = self.part('ref')\n        optimizer =",
    ).replace("list(net.parameters())", "[*net.parameters(), *ref.parameters()]")
    (built,) = _trace(OBJECTS + use).of(OptimizerBuilt)
    assert len({model for over in built.over for model in options(over.of)}) == 2
