"""Command lines of launchers, as they stand: what ``rehearse`` and ``verify`` read of them."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint.prove.places import NoEntry, diff, find, scripts
from fsdp2lint.rehearse.commands import NoCommand, marked, split, started, words_of

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torchrun reads its words")
needs_accelerate = pytest.mark.skipif(
    find_spec("accelerate") is None, reason="accelerate reads its words"
)


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("torchrun --nproc_per_node 2 train.py", "torch.distributed.run"),
        ("python -m torch.distributed.run train.py", "torch.distributed.run"),
        ("NCCL_DEBUG=INFO torchrun train.py", "torch.distributed.run"),
        ("accelerate launch train.py", "accelerate.commands.launch"),
        ("accelerate-launch train.py", "accelerate.commands.launch"),
        (
            "/usr/bin/python3.11 -m accelerate.commands.launch train.py",
            "accelerate.commands.launch",
        ),
        ("accelerate config", None),
        ("python train.py", None),
        ("train.py --torchrun", None),
        ("A=1", None),
        ("", None),
    ],
)
def test_a_launcher_is_recognised(command: str, launcher: str | None) -> None:
    found = split(words_of(command))
    assert (found and found[1]) == launcher


def test_words_of_several_lines_and_of_none() -> None:
    assert words_of("torchrun \\\n  --nproc_per_node 2 \\\n  'a b.py'")[-1] == "a b.py"
    assert words_of("it's train.py") == []


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--steps 2 torchrun -m a --steps 9", "--steps 2 -- torchrun -m a --steps 9"),
        ("accelerate launch -q train.py", "-- accelerate launch -q train.py"),
        ("A=1 torchrun train.py", "-- A=1 torchrun train.py"),
        ("train.py --nproc 2", "train.py --nproc 2"),
        ("train.py -- torchrun", "train.py -- torchrun"),
    ],
)
def test_options_behind_a_launcher_are_not_ours(words: str, wanted: str) -> None:
    assert marked(words.split()) == wanted.split()


@needs_torch
def test_torchrun_reads_its_own_words() -> None:
    found = started(
        ["B=2", "torchrun", "--nproc-per-node=3", "--nnodes", "2", "train.py", "--lr", "1"]
    )
    assert (found.target, found.module, found.arguments) == ("train.py", False, ("--lr", "1"))
    assert found.processes == 6
    assert found.environment == {"B": "2"}


@needs_torch
def test_a_module_for_as_many_ranks_as_there_are_gpus() -> None:
    found = started(["torchrun", "--nproc_per_node", "gpu", "-m", "recipes.train"])
    assert (found.target, found.module, found.processes) == ("recipes.train", True, None)


@needs_torch
def test_what_torchrun_refuses_is_one_line() -> None:
    with pytest.raises(NoCommand, match=r"torchrun refuses the command line: .*required") as told:
        started(["torchrun", "--nproc_per_node", "2"])
    assert "\n" not in str(told.value)


SETTINGS = """\
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_state_dict_type: FULL_STATE_DICT, fsdp_offload_params: true}
mixed_precision: bf16
num_processes: 4
"""


@needs_accelerate
def test_accelerate_reads_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fsdp.yaml").write_text(SETTINGS)
    (tmp_path / "train.py").write_text("print(1)\n")
    place = find(
        "accelerate launch --config_file fsdp.yaml --fsdp_offload_params false train.py -x"
    )
    assert (place.target, place.arguments) == (str(tmp_path / "train.py"), ("-x",))
    assert place.processes == 4
    said = place.environment
    assert (said["FSDP_VERSION"], said["FSDP_STATE_DICT_TYPE"]) == ("2", "FULL_STATE_DICT")
    assert said["FSDP_OFFLOAD_PARAMS"] == "false"
    assert said["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert not any(name in said for name in ("MASTER_PORT", "OMP_NUM_THREADS"))
    assert scripts(place) == [str(tmp_path / "train.py")]
    assert place.settings == str(tmp_path / "fsdp.yaml")
    (tmp_path / "other.yaml").write_text(SETTINGS.replace("bf16", "fp16"))
    other = find("accelerate launch --config_file other.yaml train.py -x")
    assert "-mixed_precision: bf16" in diff(place, other)


@needs_accelerate
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--config_file missing.yaml train.py", "`missing.yaml` does not exist"),
        ("--config_file deep.yaml train.py", "deepspeed"),
    ],
)
def test_what_accelerate_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.yaml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config: {}\nnum_processes: 2\n"
    )
    with pytest.raises(NoCommand, match=why) as told:
        started(["accelerate", "launch", *words.split()])
    assert "\n" not in str(told.value)


@needs_torch
def test_a_script_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoEntry, match=r"no such script: train.py"):
        find("torchrun train.py")


SCRIPT = """\
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.ones(1, 2)).sum()
loss.backward()
optimizer.step()
print(sys.argv[1:], os.environ["SIZE"], dist.get_world_size())
dist.destroy_process_group()
"""


@needs_torch
@pytest.mark.ranks
def test_rehearsing_a_command_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = "rehearse -f json --timeout 500 SIZE=s torchrun --nproc_per_node 3 train.py --steps 1"
    done = subprocess.run(
        [sys.executable, "-m", "fsdp2lint", *words.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
        check=False,
    )
    report = json.loads(done.stdout)
    assert len(report["ranks"]) == 3
    assert "['--steps', '1'] s 3" in done.stderr
