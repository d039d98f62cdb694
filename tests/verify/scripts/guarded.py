"""A run that guards itself: its blocks are sharded and its root is not."""

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp2lint.rehearse import ContractWarning, guard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
whole = torch.optim.SGD(model.parameters(), lr=0.1)
fully_shard(model[0])  # seen: FSDP206
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    stale = guard(model, whole)
    stale.close()
    watched = guard(model, optimizer, every=2)
    for step in range(2):
        torch.manual_seed(step * dist.get_rank())
        assert [violation.code for violation in watched.violations] == []
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    watched.close()
assert [violation.code for violation in stale.violations] == ["FSDP201"]
assert [violation.code for violation in watched.violations] == ["FSDP206"]
texts = [str(one.message) for one in said if issubclass(one.category, ContractWarning)]
assert len(texts) == 2, texts
assert "`SGD` holds `Linear.weight` and 1 more as it was before `fully_shard`" in texts[0], texts
assert (
    "ranks have drifted apart in `1.weight`: no `fully_shard` in `Sequential` manages it"
    in texts[1]
), texts
assert {v.at.line for v in (*stale.violations, *watched.violations) if v.at} == {15, 16}
assert [*stale.notes, *watched.notes, *stale.doubts, *watched.doubts] == []
dist.destroy_process_group()
