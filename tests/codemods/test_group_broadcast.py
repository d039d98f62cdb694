"""``sync_module_states`` with a process group, as ``migrate`` writes it: each group starts from its own first rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.rehearse.outcome import Request
from fsdp2lint.source.reading import read
from tests.verify.scenes import forking

pytestmark = pytest.mark.ranks

pytest.importorskip("torch")

TEAMS = '''"""Two teams of two ranks; each trains a model of its own."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
teams = [dist.new_group([0, 1]), dist.new_group([2, 3])]
torch.manual_seed(rank)
net = FSDP(
    nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)),
    process_group=teams[rank // 2],
    device_id=torch.cuda.current_device(),
    sync_module_states=True,
)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for step in range(3):
    torch.manual_seed(100 * step + rank)
    loss = net(torch.randn(4, 8, device="cuda")).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
'''


def test_each_team_trains_what_it_trained_before(tmp_path: Path) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(TEAMS)
    made = migrate((read(before),), knowledge.codemods())
    assert made.failures == []
    after.write_text(made.after[0].text)
    losses = {}
    with forking() as ranks:
        for script in (before, after):
            work = tmp_path / script.stem
            work.mkdir()
            run = ranks.launch(
                Request(str(script), str(work), nproc=4, folder=str(work)), lambda _: None
            )
            assert [rank.error for rank in run.ranks] == [""] * 4
            losses[script] = [
                tuple(loss for step in rank.steps for loss in step.losses) for rank in run.ranks
            ]
    assert losses[after] == losses[before]
    assert all(len(of_rank) == 3 for of_rank in losses[before])
    assert len({of_rank[0] for of_rank in losses[before]}) == 4
