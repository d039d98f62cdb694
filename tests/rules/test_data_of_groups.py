"""Which share of the data each rank gets beside tensor parallelism (FSDP409), form by form."""

from __future__ import annotations

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings

TEXT = """\
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler

from elsewhere import config, dataset

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
dp, tp = mesh["dp"], mesh["tp"]
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
for layer in model:
    parallelize_module(layer, tp, {PLAN})
    fully_shard(layer, mesh=dp)
fully_shard(model, mesh=dp)
optimizer = torch.optim.AdamW(model.parameters())
sampler = DistributedSampler(dataset{GIVEN})
loader = DataLoader(dataset, batch_size=4, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        {FIRST}
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("given", "plan", "first", "code"),
    [
        ("", "ColwiseParallel()", "pass", "FSDP409"),
        (", num_replicas=world, rank=rank", "ColwiseParallel()", "pass", "FSDP409"),
        (', int(os.environ["WORLD_SIZE"]), rank', "ColwiseParallel()", "pass", "FSDP409"),
        (", num_replicas=dp.size(), rank=dp.get_local_rank()", "ColwiseParallel()", "pass", ""),
        (", num_replicas=world // 2, rank=rank // 2", "ColwiseParallel()", "pass", ""),
        (", config.shares, config.share", "ColwiseParallel()", "pass", ""),
        ("", "PrepareModuleInput()", "pass", ""),
        ("", "ColwiseParallel()", "dist.broadcast(batch, group_src=0, group=tp.get_group())", ""),
    ],
)
def test_a_tensor_parallel_group_sees_one_batch(
    given: str, plan: str, first: str, code: str
) -> None:
    text = TEXT.replace("{GIVEN}", given).replace("{PLAN}", plan).replace("{FIRST}", first)
    said = {rule.code for rule, _ in findings([Source("train.py", text)])}
    assert said == ({code} if code else set())


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("rank, world", "FSDP409"),
        ("dp.get_local_rank(), dp.size()", ""),
        ("rank // 2, world // 2", ""),
    ],
)
def test_a_data_set_that_splits_itself(place: str, code: str) -> None:
    own = """\
class Stream(torch.utils.data.IterableDataset):
    def __init__(self, files, rank, world):
        self.files, self.rank, self.world = files, rank, world

    def __iter__(self):
        for file in self.files[self.rank :: self.world]:
            yield torch.load(file)


"""
    text = TEXT.replace("dist.init_process_group", own + "dist.init_process_group", 1)
    text = text.replace("sampler = DistributedSampler(dataset{GIVEN})\n", "")
    text = text.replace("(dataset, batch_size=4, sampler=sampler)", f"(Stream(dataset, {place}))")
    text = text.replace("    sampler.set_epoch(epoch)\n", "")
    text = text.replace("{PLAN}", "ColwiseParallel()").replace("{FIRST}", "pass")
    said = {rule.code for rule, _ in findings([Source("train.py", text)])}
    assert said == ({code} if code else set())
