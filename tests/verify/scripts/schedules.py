"""Three runs go on from one optimizer state: one restores its schedule, two begin it anew."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import LambdaLR

dist.init_process_group("gloo")
torch.manual_seed(0)


def halving(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 0.5**step)


def begin() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(6, 6)
    fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(4, 6)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


model, optimizer = begin()
schedule = halving(optimizer)
step(model, optimizer)
schedule.step()
kept, told = optimizer.state_dict(), schedule.state_dict()

model, restored = begin()
whole = halving(restored)
restored.load_state_dict(kept)
whole.load_state_dict(told)
step(model, restored)

model, late = begin()
late.load_state_dict(kept)
replacing = halving(late)
step(model, late)

model, alone = begin()
begun = halving(alone)
alone.load_state_dict(kept)
step(model, alone)
begun.step()
dist.destroy_process_group()
