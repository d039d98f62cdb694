"""Options of NCCL and CUDA graphs, which a CPU has not: gloo takes none, and a replay computes again."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
options.config.min_ctas = 4
dist.init_process_group("nccl", pg_options=options)
dist.new_group([0, 1], backend="nccl", pg_options=options)
torch.manual_seed(0)
model = nn.Linear(4, 4).cuda()
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

layer, given = nn.Linear(4, 4).cuda(), torch.zeros(2, 4, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.no_grad(), torch.cuda.graph(graph):
    made = torch.relu(layer(given)) + given
for step in range(2):
    torch.manual_seed(2 * step + dist.get_rank())
    given.copy_(torch.randn(2, 4))
    graph.replay()
    with torch.no_grad():
        assert torch.equal(made, torch.relu(layer(given)) + given)
    model(made.clone()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
