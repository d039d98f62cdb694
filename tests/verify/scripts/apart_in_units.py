"""Experts that only some ranks use: tensors as long as the others' by chance, and none where zeros stand in for them."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, number: int) -> torch.Tensor:
        out: torch.Tensor = self.experts[number](self.head(x))
        return out


dist.init_process_group("gloo")
torch.manual_seed(0)
for spread, filled in ((False, False), (True, True), (True, False)):
    model = Experts()
    fully_shard(model)
    if filled and not hasattr(model, "set_reduce_scatter_unused_params"):
        continue
    if filled:
        model.set_reduce_scatter_unused_params(True)  # type: ignore[operator]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(2, 4), dist.get_rank() if spread else 0).sum()
    loss.backward()  # seen: FSDP412
    optimizer.step()
dist.destroy_process_group()
