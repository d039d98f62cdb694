"""What stands between a mistake and its rule in trainers: flags, checks of a batch, paths that settings name."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, marked, named

HEAD = """\
import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from elsewhere import config
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        return self.encode(x)

    def encode(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x


def shard(model):
    if not config.fsdp.enabled:
        return model
    options = {"reshard_after_forward": config.fsdp.reshard}
    for block in model.tower.blocks:
        fully_shard(block, **options)
    fully_shard(model.tower, **options)
    register(model.tower)
    fully_shard(model, **options)
    return model


"""
RUN = """

dist.init_process_group("nccl")
model = shard(Model())
if config.compile:
    model = torch.compile(model)
for batch in config.data:
    model(batch).sum().backward()
"""


def says_what_it_marks(text: str) -> None:
    """The script gives the findings that its comments expect, and no other."""
    sources = [Source("train.py", HEAD + dedent(text) + RUN)]
    assert named(list(findings(sources))) == marked(sources, "expect")


@pytest.mark.parametrize("registered", [True, False])
def test_a_method_is_called_behind_checks_of_the_batch(registered: bool) -> None:
    """The forward around it gathers its own group only, whatever `reshard_after_forward` is."""
    registration = 'register_fsdp_forward_method(tower, "encode")' if registered else "pass"
    says_what_it_marks(
        f"""
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.tower = Tower()
                self.head = nn.Linear(8, 8)

            def forward(self, batch):
                images = [one for one in batch if one is not None]
                if not images:
                    return self.head(torch.zeros(1, 8))
                return self.head(self.tower.encode(torch.stack(images)))  # {"fine" if registered else "expect"}: FSDP204


        def register(tower):
            {registration}
        """
    )


SAVES = (
    ("if dist.get_rank() == 0:\n    torch.save(shards, folder / 'model.pt')  # expect: FSDP311", True),
    ("if dist.get_rank() == 0:\n    torch.save(shards, folder / '0.pt')\n"
     "else:\n    torch.save(shards, folder / f'{dist.get_rank()}.pt')", False),
    ("torch.save(shards, folder / f'{dist.get_rank()}.pt')", False),
)  # fmt: skip


@pytest.mark.parametrize(("save", "lost"), SAVES)
def test_one_rank_writes_its_shards_wherever_that_is(save: str, lost: bool) -> None:
    text = """\
dist.init_process_group("nccl")
net = nn.Linear(8, 8)
fully_shard(net)
folder = Path(settings()) / "checkpoints"
shards = {name: p.to_local().cpu() for name, p in net.named_parameters()}
"""
    head = HEAD.replace("import config", "import config, settings").replace(
        "register(model.tower)", "pass"
    )
    sources = [Source("train.py", head + text + save + "\n")]
    found = named(list(findings(sources)))
    assert found == marked(sources, "expect")
    assert bool(found) is lost


ASKED = """\
import torch
from elsewhere import config
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard


def shard(model):
    if not config.fsdp:
        return model
    fully_shard(model)
    return model


def switch(model, on):
    if {test}:
        model.set_requires_gradient_sync(on)


model = shard(nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
for number, batch in enumerate(config.data):
    switch(model, {on})
    model(batch).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ('hasattr(model, "set_requires_gradient_sync")', True),
        ("isinstance(model, FSDPModule)", True),
        ('not hasattr(model, "set_requires_gradient_sync")', False),
        ('hasattr(model, "set_gradient_sync")', False),
    ],
)
def test_what_each_sharded_module_has_is_no_setting_of_its_own(test: str, found: bool) -> None:
    said = findings([Source("train.py", ASKED.format(test=test, on="False"))])
    assert ("FSDP211" in {rule.code for rule, _ in said}) is found
    fine = findings([Source("train.py", ASKED.format(test=test, on="number % 4 == 3"))])
    assert "FSDP211" not in {rule.code for rule, _ in fine}


EXPERTS = """\
import torch
import torch.distributed as dist
from torch import nn
from elsewhere import data
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        out = torch.zeros_like(x)
        chosen = self.router(x).argmax(-1)
        for i in range(4):
            mask = chosen == i
            if not mask.any():
                continue{leaves}
            out[mask] = self.experts[i](x[mask]){meets}
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Experts() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


dist.init_process_group()
model = Net()
for layer in model.layers:
    {each}fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(data, sampler=DistributedSampler(data)):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("each", [False, True], ids=["with its layer", "on its own"])
def test_an_expert_is_gathered_with_what_it_is_sharded_with(each: bool) -> None:
    sharded = "for expert in layer.experts:\n        fully_shard(expert)\n    "
    text = EXPERTS.format(
        each=sharded if each else "",
        leaves="  # expect: FSDP402" if each else "",
        meets="  # expect: FSDP412" if each else "",
    )
    sources = [Source("train.py", text)]
    assert named(list(findings(sources))) == marked(sources, "expect")
