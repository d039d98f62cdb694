"""A run that imports ``guard`` when its models are built: what came before is not seen, and that is said."""

import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
plain = nn.Linear(6, 6)
stale = torch.optim.SGD(plain.parameters(), lr=0.1)
fully_shard(plain)
with torch.device("meta"):
    empty = nn.Linear(6, 6)
fully_shard(empty)
empty.to_empty(device="cpu")  # seen: FSDP251
temperature = nn.Parameter(torch.ones(()))
both = torch.optim.SGD([*empty.parameters(), *plain.parameters(), temperature], lr=0.0)

from fsdp2lint.rehearse import ContractWarning, guard  # noqa: E402

with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    watched = guard(empty, both)
    old = guard(plain, stale)
    (empty(torch.ones(4, 6)).sum() * temperature).backward()
    both.step()
    watched.close()
    old.close()
assert watched.violations == []
assert "the model was built before `guard` was imported" in watched.notes[0], watched.notes
texts = [str(one.message) for one in said if issubclass(one.category, ContractWarning)]
assert len(texts) == 1, texts
assert "2 of 2 parameters of `SGD` are not the model's" in texts[0], texts
dist.destroy_process_group()
