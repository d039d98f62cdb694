"""Experts that one replica of hybrid sharding does not use: the other replica adds up gradients of other parameters."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
        out: torch.Tensor = self.experts[number](x)
        return out


dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicas", "shards"))
model = Experts()
fully_shard(model, mesh=mesh)
for number in (0, dist.get_rank()):
    model(torch.ones(2, 4), number).sum().backward()  # seen: FSDP412
dist.destroy_process_group()
