"""Calls `forward` itself: once where the root is still gathered, which raises nothing; once on purpose."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method


class Model(nn.Sequential):
    def encode(self: Any, x: Any) -> Any:
        return self.forward(x)  # the hooks around `encode` have run


dist.init_process_group("gloo")
torch.manual_seed(0)
model: Any = Model(nn.Linear(6, 6), nn.Linear(6, 6))
fully_shard(model)
register_fsdp_forward_method(model, "encode")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(4, 6)
model(x).sum().backward()
model.encode(x).sum().backward()
optimizer.step()
model(x)  # leaves the root gathered
with torch.no_grad():
    model.forward(x)  # only looks
model.forward(x).sum().backward()  # seen: FSDP203
optimizer.step()
dist.destroy_process_group()
