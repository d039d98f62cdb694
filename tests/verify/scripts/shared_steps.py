"""Trains on with one step counter for two parameters, as an FSDP1 file brings them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(6, 6)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())


def step() -> None:
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()  # seen: FSDP313
    optimizer.zero_grad()


step()
first, *others = optimizer.state.values()
for state in others:
    state["step"] = first["step"]
step()
dist.destroy_process_group()
