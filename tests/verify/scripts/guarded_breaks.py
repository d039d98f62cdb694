"""A guarded run that breaks the contract in five ways, after one that breaks nothing."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.fsdp import fully_shard

from fsdp2lint.rehearse import guard

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
apart = dist.new_group(backend="gloo")
torch.manual_seed(0)
x = torch.ones(4, 6)


def begin() -> tuple[Any, torch.optim.Optimizer, Any]:
    model: Any = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    watched = guard(model, optimizer, every=1)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer, watched


_, _, calm = begin()
calm.close()
assert (calm.violations, calm.doubts, calm.notes) == ([], [], [])

model, optimizer, watched = begin()
share = next(model.parameters()).sum().item()  # seen: FSDP218
torch.save(model.state_dict(), f"shards{dist.get_rank()}.pt")  # seen: FSDP301
async_save(model.state_dict(), checkpoint_id="dropped", process_group=apart)  # seen: FSDP307
model(x)  # leaves the root gathered
model.forward(x).sum().backward()  # seen: FSDP203
first, *others = optimizer.state.values()
for state in others:
    state["step"] = first["step"]
optimizer.step()  # seen: FSDP313
watched.close()
codes = sorted(violation.code for violation in watched.violations)
assert codes == ["FSDP203", "FSDP218", "FSDP301", "FSDP307", "FSDP313"], codes
dist.destroy_process_group()
