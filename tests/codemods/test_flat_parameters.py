"""An average of weights over FSDP1's flat parameters, as ``migrate`` writes it: the same average."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.rehearse.outcome import Request
from fsdp2lint.source.reading import read
from tests.verify.scenes import forking

pytestmark = pytest.mark.ranks

pytest.importorskip("torch")

AVERAGE = '''"""A model and the moving average of its weights."""

import copy
import json

import torch
import torch.distributed as dist
import torch.distributed.fsdp._traversal_utils as traversal
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


@torch.no_grad()
def follow(slow, fast, rate=0.7):
    mine, theirs = [], []
    for held, unit in zip(traversal._get_fsdp_handles(slow), traversal._get_fsdp_handles(fast)):
        if unit.flat_param is not None and unit.flat_param.requires_grad:
            mine.append(held.flat_param.data)
            theirs.append(unit.flat_param.data.to(dtype=held.flat_param.dtype))
    torch._foreach_mul_(mine, rate)
    torch._foreach_add_(mine, theirs, alpha=1 - rate)


dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
slow = FSDP(copy.deepcopy(net).requires_grad_(False), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))
fast = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))
optimizer = torch.optim.SGD(fast.parameters(), lr=0.5)
errors = []
for step in range(4):
    torch.manual_seed(10 * step + dist.get_rank())
    inputs = torch.randn(4, 5)
    fast(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    follow(slow, fast)
    with torch.no_grad():
        errors.append(slow(inputs).square().mean().item())
with open(f"errors{dist.get_rank()}.json", "w") as file:
    json.dump(errors, file)
'''


def test_the_average_follows_as_before(tmp_path: Path) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(AVERAGE)
    made = migrate((read(before),), knowledge.codemods())
    assert made.failures == []
    assert made.ledger.manual == []
    assert "        if unit.requires_grad:\n" in made.after[0].text
    after.write_text(made.after[0].text)
    errors = {}
    with forking() as ranks:
        for script in (before, after):
            work = tmp_path / script.stem
            work.mkdir()
            run = ranks.launch(
                Request(str(script), str(work), nproc=2, folder=str(work)), lambda _: None
            )
            assert [rank.error for rank in run.ranks] == ["", ""]
            errors[script.stem] = [
                json.loads((work / f"errors{rank}.json").read_text()) for rank in range(2)
            ]
    assert errors["after"] == [pytest.approx(one, rel=1e-6) for one in errors["before"]]
    assert all(len(set(one)) == 4 for one in errors["before"])
