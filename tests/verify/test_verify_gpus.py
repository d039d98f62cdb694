"""``--device cuda`` as far as a machine without a GPU can show it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsdp2lint.cli import rehearse as rehearsing
from fsdp2lint.cli import verify as verifying
from fsdp2lint.prove.compare import Options, Trial
from fsdp2lint.prove.places import find
from fsdp2lint.prove.words import rendered
from fsdp2lint.rehearse import rehearse
from fsdp2lint.rehearse.launch import environment
from fsdp2lint.rehearse.outcome import Request

from .scenes import forking

pytestmark = pytest.mark.ranks

SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

print("sees", torch.cuda.is_available())
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(4, 4)
fully_shard(model, mesh=dist.init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("command", "words"),
    [(rehearsing.command, ("train.py",)), (verifying.command, ("train.py", "train.py"))],
)
def test_without_gpus_it_is_one_line(
    command: Any, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("train.py").write_text(SCRIPT)
    result = CliRunner().invoke(command, ["--device", "cuda", "--nproc", "3", *words])
    said = "--device cuda takes one GPU for each of the 3 ranks, and PyTorch sees 0"
    assert result.output.splitlines()[-1] == f"Error: {said}"


def test_the_ranks_get_the_gpus_that_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    own = environment(Request("train.py", "", device="cuda"))
    assert own["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert not {"TORCHDYNAMO_DISABLE", "GLOO_SOCKET_IFNAME"} & own.keys()
    assert environment(Request("train.py", ""))["CUDA_VISIBLE_DEVICES"] == ""


def test_the_script_runs_as_it_is_and_reaches_the_highest_rung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdp2lint.prove.equality import apart

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rehearse, "gpus", lambda: 2)
    Path("train.py").write_text(SCRIPT)
    heard: list[bytes] = []
    options = Options(timeout=600.0, device="cuda")
    with forking() as ranks:
        place = find("train.py")
        with Trial(
            place, options, echo=heard.append, run=ranks.launch, compare=apart.main
        ) as trial:
            found = trial.against(place)
    text = rendered(found, colour=False)
    assert found.exit_code == 0, text
    assert heard[0] == b"sees False\n", "no stand-in answers for CUDA"
    assert [side.replaced for side in (found.before, found.after) if side] == [{}, {}]
    assert "2 GPU ranks" in text
    assert text.endswith("Equal: rung 4 of 4 (run on GPU).\n")


SPAWNING = """
import os
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard


def work(rank, ranks):
    os.environ["MASTER_PORT"] = "1"
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=rank, world_size=ranks)
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


if __name__ == "__main__":
    mp.spawn(work, args=(int(sys.argv[1]),), nprocs=int(sys.argv[1]))
"""


@pytest.mark.parametrize("asked", [2, 3])
def test_a_script_that_starts_its_own_processes_runs_on_the_ranks_that_are_there(
    asked: int, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPAWNING)
    with forking() as ranks:
        request = Request(
            str(script), str(tmp_path), device="cuda", arguments=(str(asked),), timeout=600.0
        )
        run = ranks.launch(request, lambda _: None)
    if asked == 2:
        assert [(rank.how, len(rank.steps)) for rank in run.ranks] == [("ended", 1)] * 2
    else:
        assert "rehearse it with `--nproc 3`" in run.ranks[0].error


def test_gpus_are_counted_by_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "class cuda:\n    device_count = staticmethod(lambda: 7)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert rehearse.gpus() == 7
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, ""))
    assert rehearse.gpus() == 0
