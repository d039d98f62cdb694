"""A load of a file that lacks a key raises after ``migrate`` as it did before."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.rehearse.outcome import Request
from fsdp2lint.source.reading import read

ROW = "keys that it lacks are not reported"

SCRIPT = """import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def resume(model, path):
    model.load_state_dict(torch.load(path))


dist.init_process_group("gloo")
weights = nn.Linear(8, 8).state_dict()
weights.pop("bias")
if dist.get_rank() == 0:
    torch.save(weights, "start.pt")
dist.barrier()
torch.manual_seed(dist.get_rank())
model = FSDP(nn.Linear(8, 8){wrapped})
resume(model, "start.pt")
"""


def _migrated(script: str, folder: Path) -> tuple[str, list[str]]:
    (folder / "train.py").write_text(script)
    made = migrate((read(folder / "train.py"),), knowledge.codemods())
    assert made.failures == []
    return made.after[0].text, [entry.why for entry in made.ledger.entries]


@pytest.mark.ranks
def test_it_raises_in_both(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.verify.scenes import forking

    before = SCRIPT.format(wrapped="")
    after, _ = _migrated(before, tmp_path)
    assert "fully_shard" in after
    for name, text in (("before", before), ("after", after)):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.py").write_text(text)
        request = Request(
            str(tmp_path / f"{name}.py"), str(tmp_path), nproc=2, folder=str(tmp_path / name)
        )
        with forking() as ranks:
            run = ranks.launch(request, lambda _: None)
        assert all('Missing key(s) in state_dict: "bias"' in str(r.error) for r in run.ranks), name


@pytest.mark.parametrize(
    "wrapped",
    [
        ", process_group=dist.new_group([0, 1])",
        ", cpu_offload=CPUOffload(offload_params=True)",
    ],
)
def test_no_broadcast_that_others_may_not_join(wrapped: str, tmp_path: Path) -> None:
    after, why = _migrated(SCRIPT.format(wrapped=wrapped), tmp_path)
    assert "broadcast_from_rank0" not in after
    assert any(ROW in one for one in why)


def test_no_broadcast_for_a_load_that_is_not_strict(tmp_path: Path) -> None:
    script = SCRIPT.format(wrapped="").replace("load(path))", "load(path), strict=False)")
    after, why = _migrated(script, tmp_path)
    assert "broadcast_from_rank0" not in after
    assert any(ROW in one for one in why)
