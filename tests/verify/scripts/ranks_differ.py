"""Shards one model that each rank drew differently, one that was broadcast, one drawn again."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
drawn, sent, again = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
for parameter in sent.parameters():
    dist.broadcast(parameter.detach(), 0)
fully_shard(drawn)  # seen: FSDP232
fully_shard(sent)
fully_shard(again)
torch.manual_seed(5)
again.reset_parameters()
parameters = [p for model in (drawn, sent, again) for p in model.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
again(sent(drawn(torch.randn(4, 6)))).sum().backward()
optimizer.step()
dist.destroy_process_group()
