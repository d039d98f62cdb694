"""What a program counted over its ranks, because FSDP1's parameters were shards, is counted once."""

from __future__ import annotations

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

SCRIPT = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(world_size: int) -> nn.Module:
    model = FSDP(nn.Linear(8, 8), use_orig_params=True)
    local = torch.tensor(sum(p.numel() for p in model.parameters()))
    # each rank holds a part
    if world_size > 1:
        dist.all_reduce(local)
    print(int(local))
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    # FULL_SHARD: a rank sees a part of them
    millions *= world_size
    print(millions)
    return model


dist.init_process_group("gloo")
model = build(dist.get_world_size())
total = (sum(p.numel() for p in model.parameters()) * dist.get_world_size()) / 1e6
print(total)
"""


def test_parameters_are_counted_once() -> None:
    made = migrate((Source("train.py", SCRIPT),), knowledge.codemods())
    text = made.after[0].text
    assert not made.failures
    assert not made.remaining
    assert "all_reduce" not in text
    assert "world_size > 1" not in text
    assert "millions *=" not in text
    assert "# FULL_SHARD" not in text
    assert "total = sum(p.numel() for p in model.parameters()) / 1e6" in text
