"""A block that one rank leaves out: the next one that it gathers is as large by chance."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor, left_out: int) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            if number != left_out:
                x = block(x)  # seen: FSDP412
        return x


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Blocks()
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
model.set_requires_gradient_sync(False)  # type: ignore[operator]
for left_out in (-1, 2 - dist.get_rank()):
    model(torch.ones(2, 4), left_out)
dist.destroy_process_group()
