"""Guarded models that break the contract before ``guard`` is called, beside some that do not."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp2lint.rehearse import guard

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
x = torch.ones(4, 6)


def build(seed: int) -> Any:
    torch.manual_seed(seed)
    return nn.Linear(6, 6)


def train(model: Any) -> Any:
    optimizer = torch.optim.Adam(model.parameters())
    watched = guard(model, optimizer)
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    watched.close()
    return watched


same, silent, overwritten, apart = (
    fully_shard(build(0)),
    fully_shard(build(0)),
    fully_shard(build(dist.get_rank())),
    fully_shard(build(dist.get_rank())),  # seen: FSDP232
)
for parameter in overwritten.parameters():
    nn.init.ones_(parameter)
silent.set_requires_gradient_sync(False)

assert train(same).violations == []
assert train(overwritten).violations == []
assert [violation.code for violation in train(silent).violations] == ["FSDP211"]
assert [violation.code for violation in train(apart).violations] == ["FSDP232"]
dist.destroy_process_group()
