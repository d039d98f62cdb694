"""A head that no batch reaches, a frozen part, and a part whose learning rate is nought: notes, no violations."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.slow = nn.Linear(6, 6, bias=False)
        self.spare = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.slow(self.frozen(self.body(x)))
        return out


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
fully_shard(model)
others = [p for name, p in model.named_parameters() if not name.startswith("slow")]
fast = torch.optim.AdamW(others, lr=0.1, weight_decay=0.0)
slow = torch.optim.SGD(model.slow.parameters(), lr=0.0)
for _ in range(2):
    model(torch.ones(4, 6)).sum().backward()
    fast.step()
    slow.step()
    fast.zero_grad()
    slow.zero_grad()
dist.destroy_process_group()
