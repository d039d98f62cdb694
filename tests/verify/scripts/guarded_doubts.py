"""A guarded run with a layer that no batch reaches and statistics of each rank's own: doubts, no violations."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp2lint.rehearse import guard


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.spare = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.body(x))
        return out


dist.init_process_group("gloo")
torch.manual_seed(0)
model = Model()
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watched = guard(model, optimizer, every=0)
torch.manual_seed(dist.get_rank())
for _ in range(2):
    model(torch.randn(4, 6)).pow(3).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
watched.compare()
watched.close()
assert (watched.violations, watched.notes) == ([], [])
found = [(doubt.code, doubt.at.line if doubt.at else 0) for doubt in watched.doubts]
assert found == [("FSDP261", 32), ("FSDP260", 27)], found
assert "spare.weight, spare.bias" in watched.doubts[1].message
dist.destroy_process_group()
