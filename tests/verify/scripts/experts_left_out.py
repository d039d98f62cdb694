"""Experts of each rank and a gate that all share, both left out of the shards: the gate drifts."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Mixture(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 1)
        self.up = nn.Linear(6, 6)
        with torch.random.fork_rng():
            torch.manual_seed(1 + rank)
            self.expert = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.expert(self.up(x)) * self.gate(x)
        return out


dist.init_process_group("gloo")
torch.manual_seed(0)
mixed = Mixture(dist.get_rank())
own = set(mixed.expert.parameters())
fully_shard(mixed, ignored_params=own)
inner = Mixture(dist.get_rank())
model = nn.Sequential(inner, nn.Linear(6, 6))
left = {*inner.expert.parameters(), *inner.gate.parameters()}
fully_shard(model, ignored_params=left)  # seen: FSDP206
for trained in (mixed, model):
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for step in range(2):
        torch.manual_seed(2 * step + dist.get_rank())
        trained(torch.randn(4, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
