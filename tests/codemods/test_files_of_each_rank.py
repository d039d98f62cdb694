"""An optimizer's state in a file of each rank: what FSDP1 wrote there is read by the migrated program."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

SCRIPT = """\
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.last = nn.Linear(5, 8)

    def forward(self, x):
        return self.last(self.frozen(self.first(x)).tanh())


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = Net()
if "load" in sys.argv:
    net.load_state_dict(torch.load("net.pt"))
model = FSDP(
    net,
    auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
    device_id=torch.device("cpu"),
    use_orig_params=True,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
if "load" in sys.argv:
    optimizer.load_state_dict(torch.load(f"optimizer.{rank}.pt"))
for step in range(2):
    x = torch.ones(3, 8) * (step + rank)
    (model(x) - x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
    state = model.state_dict()
if rank == 0:
    torch.save(state, "net.pt")
torch.save(optimizer.state_dict(), f"optimizer.{rank}.pt")
dist.destroy_process_group()
"""


def migrated(text: str) -> str:
    made = migrate((Source("train.py", text),), knowledge.codemods())
    assert made.failures == []
    return made.after[0].text


def test_each_rank_reads_its_file_through_a_function() -> None:
    text = migrated(SCRIPT)
    assert 'whole_optimizer_states(torch.load(f"optimizer.{rank}.pt"), optimizer)' in text
    assert migrated(text) == text


def test_a_file_of_all_ranks_is_read_as_it_is() -> None:
    assert "whole_optimizer_states" not in migrated(SCRIPT.replace(".{rank}.pt", ".pt"))


WITH_MODEL = """\
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(0)
model = FSDP(nn.Linear(8, 5), device_id=torch.device("cpu"), use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)


def path():
    return f"last.{{rank}}.pt"


if "load" in sys.argv:
    last = torch.load(path(), weights_only=False)
    with FSDP.state_dict_type(model, StateDictType.{kind}):
        model.load_state_dict(last["model"])
    optimizer.load_state_dict(last["optimizer"])
for step in range(2):
    (model(torch.ones(3, 8) * (step + rank)) - 1).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(sum(p.square().sum() for p in model.parameters()))
with FSDP.state_dict_type(model, StateDictType.{kind}):
    torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}, {path})
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["LOCAL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_the_shards_of_a_model_stay_in_files_of_each_rank(kind: str) -> None:
    text = migrated(WITH_MODEL.format(kind=kind, path="path()"))
    assert '{"model": get_model_state_dict(model), "optimizer": optimizer.state_dict()}' in text
    assert 'set_model_state_dict(model, last["model"])' in text
    assert 'optimizer.load_state_dict(last["optimizer"])' in text
    assert "FSDP." not in text


def test_flat_shards_in_one_file_are_left() -> None:
    text = migrated(WITH_MODEL.format(kind="LOCAL_STATE_DICT", path='"last.pt"'))
    assert "fully_shard(" not in text


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("torch") is None, reason="running needs torch")
def test_it_goes_on_from_what_fsdp1_wrote(tmp_path: Path) -> None:
    from fsdp2lint.prove.compare import Options, Trial
    from fsdp2lint.prove.equality import apart
    from fsdp2lint.prove.places import find
    from tests.verify.scenes import forking

    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(SCRIPT)
    after.write_text(migrated(SCRIPT))
    options = Options(timeout=600.0, resume=((), ("load",)))
    with (
        forking() as ranks,
        Trial(find(str(before)), options, run=ranks.launch, compare=apart.main) as trial,
    ):
        found = trial.against(find(str(after)))
    assert found.fault is None
    assert [one.message for one in found.differences] == []
