"""Code that builds no model itself serves models of FSDP1 and of `fully_shard` after the migration."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.running import program

LIBRARY = """import torch
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def is_wrapped(model):
    return isinstance(model, (DDP, FSDP))


def clip_or_not(model, limit):
    if isinstance(model, FSDP):
        return model.clip_grad_norm_(limit)
    return torch.nn.utils.clip_grad_norm_(model.parameters(), limit)


def clip(model: FSDP, limit: float):
    return model.clip_grad_norm_(limit)


def unwrap(model):
    if isinstance(model, (DDP, FSDP)):
        return model.module
    return model


def full_state(model):
    if isinstance(model, FSDP):
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
            return model.state_dict()
    return model.state_dict()


def backward(model: FSDP, batches):
    for batch in batches[:-1]:
        with model.no_sync():
            model(batch).sum().backward()
    model(batches[-1]).sum().backward()


def count(model):
    return len(FSDP.fsdp_modules(model)), sum(isinstance(m, FSDP) for m in model.modules())
"""

MAIN = """import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import library

dist.init_process_group("gloo")


def outcome(sharded):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model = sharded(inner)
    assert library.is_wrapped(model) and not library.is_wrapped(nn.Linear(2, 2))
    assert library.unwrap(model) is inner
    torch.manual_seed(dist.get_rank())
    library.backward(model, list(torch.randn(3, 4, 6)))
    norms = library.clip(model, 0.3), library.clip_or_not(model, 0.1)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return [float(n) for n in norms], library.full_state(model), library.count(model)


device = torch.device("cpu")
old = outcome(lambda module: FullyShardedDataParallel(module, device_id=device, use_orig_params=True))
new = outcome(fully_shard)
assert torch.allclose(torch.tensor(old[0]), torch.tensor(new[0])), (old[0], new[0])
assert old[1].keys() == new[1].keys()
assert all(torch.allclose(old[1][name], new[1][name]) for name in old[1])
assert old[2] == new[2] == (1, 1)
print("the same for both")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def migrated(tmp_path: Path) -> Path:
    (tmp_path / "library.py").write_text(LIBRARY)
    done = program("migrate", "-q", "--write", "--allow-no-git", "library.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "accepts models of FSDP1 and of `fully_shard`" in done.stdout
    return tmp_path


def test_both_classes_are_accepted(migrated: Path) -> None:
    text = (migrated / "library.py").read_text()
    assert "isinstance(model, (DDP, FSDP, FSDPModule))" in text
    assert "def backward(model: FSDP | FSDPModule, batches):" in text
    assert "    if isinstance(model, (DDP, FSDP)):\n        return model.module\n" in text
    assert "TODO" not in text


def test_migrating_again_changes_nothing(migrated: Path) -> None:
    before = (migrated / "library.py").read_text()
    program("migrate", "-q", "--write", "--allow-no-git", "library.py", cwd=migrated)
    assert (migrated / "library.py").read_text() == before


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("torch") is None, reason="running needs torch")
def test_both_kinds_of_models_run_through_it(migrated: Path) -> None:
    (migrated / "main.py").write_text(MAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, "main.py"], cwd=migrated, capture_output=True, text=True, timeout=600
    )
    assert "the same for both" in done.stdout, done.stderr
