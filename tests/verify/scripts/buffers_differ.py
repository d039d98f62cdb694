"""One buffer is drawn on each rank, one counts what the rank saw, one is the same everywhere."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("same", torch.arange(6.0))
        with torch.random.fork_rng():
            torch.manual_seed(dist.get_rank())
            self.register_buffer("drawn", torch.randn(6))

    def forward(self, x: Any) -> Any:
        return self.norm(self.layer(x)) * self.drawn + self.same


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    fully_shard(model.layer)
    fully_shard(model)  # seen: FSDP232
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    model(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    dist.destroy_process_group()


main()
