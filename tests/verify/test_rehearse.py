"""``fsdp2lint rehearse`` from its command line, under the real torchrun; where that makes no difference, on forked ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.fsdp
from click.testing import CliRunner

from fsdp2lint.cli.rehearse import command
from fsdp2lint.rehearse import rehearse as rehearsing

from .scenes import Ranks, forking

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = ROOT / "fixtures" / "projects"
RULES = ROOT / "fixtures" / "rules"


def start(folder: Path, *arguments: str, over: Path | None = None) -> subprocess.Popen[str]:
    """A rehearsal; where a file is given, its time is over when there is that file."""
    program = ["fsdp2lint"] if over is None else ["tests.support.over", str(over)]
    return subprocess.Popen(
        [sys.executable, "-m", *program, "rehearse", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell that starts the tests in the background has them ignore the signal
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def rehearse(folder: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with forking() as serving:
        yield serving


Told = tuple[int, str, str]


@pytest.fixture
def forked(ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    """The command in the folder of the test, here and on forked ranks: three imports of PyTorch less."""
    monkeypatch.chdir(tmp_path)
    on_forks = partial(rehearsing.rehearse, run=ranks.launch)
    monkeypatch.setattr(rehearsing, "rehearse", on_forks)

    def run(*arguments: str) -> Told:
        done = CliRunner().invoke(command, arguments, standalone_mode=False)
        assert done.exception is None, done.output
        return done.return_value, done.stdout, done.stderr

    return run


ONE_AFTER_THE_OTHER = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
for turn in range(2):
    torch.manual_seed(0)
    model = FSDP(nn.Linear(8, 8), device_id=torch.cuda.current_device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 8, device="cuda")).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_norms_of_a_model_that_is_built_after_another_has_trained(
    tmp_path: Path, forked: Callable[..., Told]
) -> None:
    (tmp_path / "train.py").write_text(ONE_AFTER_THE_OTHER)
    _, out, _ = forked("-f", "json", "train.py")
    first, second = (step["norm"] for step in json.loads(out)["steps"])
    assert first == pytest.approx(second)


def test_fsdp1_for_cuda_runs(tmp_path: Path) -> None:
    script = str(PROJECTS / "fsdp1_language_model" / "train.py")
    (tmp_path / "model.pt").write_text("old")
    code, out, err = rehearse(tmp_path, "-f", "json", script, "--", "--out", "model.pt")
    told: dict[str, Any] = json.loads(out)
    discarded = "discarded the file that the script wrote: `model.pt` (keep them with --in-place)"
    assert (code, told["violations"], told["notes"]) == (0, [], [discarded])
    assert [rank["outcome"] for rank in told["ranks"]] == ["ended", "ended"]
    assert len(told["steps"]) == 4
    # two micro batches, each loss halved: what backward got adds up to the loss itself
    assert all(3.5 < step["mean"] < 5.0 for step in told["steps"])
    assert all(0.0 < step["norm"] <= 1.001 for step in told["steps"])
    assert told["replaced"]['backend "nccl"'] == 1
    assert "epoch 0: " in err
    assert told["script"] == script
    assert (tmp_path / "model.pt").read_text() == "old"


def test_fsdp2_with_dcp_for_cuda_runs(tmp_path: Path) -> None:
    script = str(PROJECTS / "fsdp2_classifier" / "train.py")
    arguments = ("-q", "--in-place", script, "--", "--checkpoints", "runs", "--offload")
    code, out, _ = rehearse(tmp_path, *arguments)
    assert "6 optimizer steps" in out
    assert out.endswith("Nothing broke the contract.\n")
    assert code == 0
    assert (tmp_path / "runs" / "latest" / ".metadata").exists()


def test_spawned_processes_are_the_ranks_and_steps_stop_them(forked: Callable[..., Told]) -> None:
    script = str(PROJECTS / "spawned_digits" / "main.py")
    code, out, _ = forked("--steps", "2", "-f", "json", script)
    told = json.loads(out)
    assert (code, told["violations"]) == (0, [])
    assert [rank["outcome"] for rank in told["ranks"]] == ["stopped", "stopped"]
    assert len(told["steps"]) == 2
    assert told["replaced"]["mp.spawn"] == 1


def test_a_violation_looks_like_a_finding(tmp_path: Path) -> None:
    script = RULES / "optimizer_before_shard" / "bad_straight_line.py"
    code, out, _ = rehearse(tmp_path, str(script))
    assert code == 1
    assert "error[FSDP201] optimizer-before-shard: `AdamW` holds" in out
    assert "sharded here" in out
    assert "Found 1 violation of the contract." in out


SPAWNING = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard

import texts


def work(rank, world):
    dist.init_process_group("nccl", init_method="tcp://localhost:29511", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fully_shard(model)
    for batch in texts.load():
        model(batch.to(rank)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    world = int(sys.argv[1])
    context = mp.start_processes(work, args=(world,), nprocs=world, join=False, start_method="fork")
    while not context.join():
        pass
"""


@pytest.fixture
def spawning(tmp_path: Path) -> Path:
    """A script that spawns its ranks over data that must be downloaded, and a patch for that beside it."""
    (tmp_path / "spawning.py").write_text(SPAWNING)
    (tmp_path / "texts.py").write_text("def load():\n    raise OSError('no network')\n")
    (tmp_path / "fakes.py").write_text(
        "import texts, torch\n\ndef small():\n    texts.load = lambda: [torch.ones(2, 4)] * 3\n"
    )
    return tmp_path


APART = """
import multiprocessing as mp

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
mp.set_start_method("spawn")
with mp.Manager() as manager, torch.random.fork_rng(devices=[torch.cuda.current_device()]):
    manager.list([torch.rand(1).item()])
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
if rank == 1:
    model[1].double()
FSDP(model, device_id=rank, sync_module_states=True)
"""


def test_a_broadcast_of_unlike_modules_is_told(tmp_path: Path) -> None:
    (tmp_path / "apart.py").write_text(APART)
    code, out, _ = rehearse(tmp_path, "-f", "json", "apart.py")
    assert code == 2
    assert {rank["error"] for rank in json.loads(out)["ranks"]} == {
        "ValueError: sync_module_states=True: tensor 2 of 4 of a module that FSDP wraps is "
        "float32 (2, 4) on cpu on rank 0 and float64 (2, 4) on cpu on rank 1 of its group"
    }


DIVIDED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
torch.manual_seed(0)
for factor, wanted in ((None, 1.5), (1.0, 3.0), (4.0, 0.75)):
    model = fully_shard(nn.Linear(2, 2, bias=False))
    if factor:
        model.set_gradient_divide_factor(factor)
    model(torch.full((1, 2), 1.0 + dist.get_rank())).sum().backward()
    assert torch.equal(model.weight.grad.full_tensor(), torch.full((2, 2), wanted)), factor
"""


def test_gradients_are_divided_by_the_factor_that_is_set(
    forked: Callable[..., Told], tmp_path: Path
) -> None:
    if not hasattr(torch.distributed.fsdp.FSDPModule, "set_gradient_divide_factor"):
        pytest.skip("from PyTorch 2.8 on")
    (tmp_path / "divided.py").write_text(DIVIDED)
    code, out, err = forked("divided.py")
    assert code == 0, out + err


SPLITTING = """
import json, os
import torch.distributed as dist

dist.init_process_group("nccl")
if not os.path.exists("data.jsonl"):
    raise SystemExit("no data")
mark = chr(167)
with open("data.jsonl") as file:
    answers = [json.loads(line)["text"].split(mark)[1] for line in file]
"""


def test_rows_of_another_form_are_told_with_the_way_round(
    forked: Callable[..., Told], tmp_path: Path
) -> None:
    (tmp_path / "splitting.py").write_text(SPLITTING)
    code, out, _ = forked("--fake", "-f", "json", "splitting.py")
    told = json.loads(out)
    assert code == 2
    assert told["notes"] == [
        "data were made up (`data.jsonl`) and may not have the form that the script reads: give it a few rows of "
        "your own, or put them in place by --patch MODULE:FUNCTION"
    ]


def test_a_patch_replaces_what_must_be_downloaded(
    forked: Callable[..., Told], spawning: Path
) -> None:
    words = ("-f", "json", "--patch", "fakes:small", "spawning.py", "--", "2")
    code, out, err = forked(*words)
    told = json.loads(out)
    assert [rank["outcome"] for rank in told["ranks"]] == ["ended", "ended"], err
    assert (code, len(told["steps"])) == (1, 3)
    (violation,) = told["violations"]
    line = SPAWNING.splitlines().index(
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    )
    assert (violation["code"], violation["location"]["row"]) == ("FSDP201", line + 1)
    assert Path(violation["filename"]).name == "spawning.py"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("spawning.py", "--", "2"), "OSError: no network"),
        (
            ("--patch", "fakes:small", "spawning.py", "--", "4"),
            "the script spawns 4 processes: rehearse it with `--nproc 4`",
        ),
        (("--patch", "fakes:large", "spawning.py"), "--patch fakes:large: module 'fakes' has no"),
        (("--patch", "nobody:small", "spawning.py"), "--patch nobody:small: No module named"),
    ],
)
def test_what_cannot_be_spawned_or_patched_is_said(
    forked: Callable[..., Told], spawning: Path, words: tuple[str, ...], said: str
) -> None:
    code, out, _ = forked(*words)
    assert code == 2
    assert said in out.split("on 2 CPU ranks")[0]


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        (
            "import pyrallis_of_ours",
            (),
            "install `pyrallis_of_ours`, or make it up: `--fake`, or else `--fake-module pyrallis_of_ours` has it do nothing",
        ),
        (
            "try:\n    import ours\nexcept ImportError:\n    import yacs",
            ("--fake",),
            "install `yacs`; `--fake-module yacs` has it do nothing",
        ),
        (
            "from torch.distributed.fsdp.wrap import default_auto_wrap_policy",
            ("--fake",),
            "the installed torch has no `default_auto_wrap_policy`: run the script with the release that it was written for",
        ),
        (
            "open('rows.jsonl')",
            (),
            "`--fake` makes up data, tokenizers and pretrained models that this machine lacks",
        ),
        (
            "import argparse\nargparse.ArgumentParser().parse_args(['--depth', '3'])",
            (),
            "the script refused its arguments: write them after `--`",
        ),
    ],
)
def test_an_error_comes_with_what_can_be_done(
    forked: Callable[..., Told], tmp_path: Path, script: str, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "train.py").write_text(script)
    code, out, _ = forked("--nproc", "1", *words, "train.py")
    assert code == 2
    assert f"\nhelp: {said}\n" in out, out
    assert ("unrecognized arguments: --depth 3" in out) == ("argparse" in script)


DEADLOCK = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
value = torch.ones(3).cuda()
if dist.get_rank() == 0:
    dist.broadcast(value, 1)
else:
    dist.recv(value, 0)
"""


def test_a_deadlock_shows_where_every_rank_waits(tmp_path: Path) -> None:
    script = tmp_path / "stuck.py"
    script.write_text(DEADLOCK)
    code, out, _ = rehearse(tmp_path, "--timeout", "100000", "stuck.py")  # nobody waits for it
    assert code == 1
    assert "all ranks wait for each other" in out
    assert "rank 0 waited at stuck.py:8, in `broadcast`" in out
    assert "rank 1 waited at stuck.py:10, in `recv`" in out
    assert "error[FSDP401] collective-under-rank-guard: rank 0 waits here" in out


SPINNING = """
import pathlib, time
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
until = time.monotonic() + 300
while dist.get_rank() == 1 and time.monotonic() < until and not pathlib.Path("seen").exists():
    pass
dist.all_reduce(torch.ones(1))
"""


def test_who_waits_for_a_rank_that_works_on_is_seen_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "spins.py").write_text(SPINNING)
    process = start(tmp_path, "-f", "json", "--in-place", "spins.py")
    assert process.stderr is not None
    err = ""
    for line in process.stderr:
        err += line
        if line.startswith("fsdp2lint: for 6 s"):
            (tmp_path / "seen").touch()
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    notes = [note for note in json.loads(out)["notes"] if note.startswith("for 6 s")]
    assert len(notes) == 1, err
    assert "rank 0 waits in all_reduce at " in notes[0]
    assert "spins.py:9, while rank 1 works at " in notes[0]
    assert f"fsdp2lint: {notes[0]}" in err


def test_an_error_of_the_script_comes_first(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "if dist.get_rank() == 1:\n"
        "    raise ValueError('no data')\n"
        "dist.barrier()\n"
    )
    code, out, _ = rehearse(tmp_path, "-m", "broken")
    assert code == 2
    assert out.startswith("rank 1 raised at broken.py:4\n  broken.py:4 in <module>\n")
    assert "ValueError: no data" in out
    assert "FSDP4" not in out


SLEEPING = """
import os, pathlib, time
pathlib.Path(f"pid{os.environ['RANK']}").write_text(str(os.getpid())), time.sleep(600)
"""


def left(folder: Path) -> bool:
    """Whether a rank that wrote down its process id is alive, after it had the time to die."""
    deadline = time.monotonic() + 60
    while lives := any(alive(int(file.read_text())) for file in folder.glob("pid?")):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return lives


def alive(pid: int) -> bool:
    """Not, if only nobody has buried it yet."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_both(process: subprocess.Popen[str], folder: Path) -> None:
    """Until both ranks have written down a process id."""
    deadline = time.monotonic() + 300
    while not all_written(folder):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def all_written(folder: Path) -> bool:
    files = list(folder.glob("pid?"))
    return len(files) == 2 and all(file.read_text() for file in files)


def test_time_that_is_over_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLEEPING)
    process = start(tmp_path, "--in-place", "slow.py", over=tmp_path / "over")
    wait_for_both(process, tmp_path)
    (tmp_path / "over").touch()
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 2
    assert "the time was over" in out
    assert "rank 1 waited at slow.py:3" in out
    assert not left(tmp_path)


def test_the_time_is_what_the_command_line_says(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("while True: pass")
    code, out, _ = rehearse(tmp_path, "--timeout", "2", "slow.py")
    assert (code, "the time was over" in out) == (2, True)


SLOW = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
if dist.get_rank() == 1:
    while True:
        torch.ones(100).sum()
dist.barrier()
"""


def test_who_is_at_work_when_the_time_is_over_breaks_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    process = start(tmp_path, "slow.py", over=tmp_path / "over")
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("fsdp2lint: for 6 s rank 0 waits"):
            (tmp_path / "over").touch()
    out, _ = process.communicate(timeout=600)
    assert (process.returncode, "FSDP4" in out) == (2, False)
    assert "rank 0 waited at slow.py:9" in out
    assert "rank 1 was at work at slow.py:8" in out


AWAY = """
import os, subprocess, sys, time

code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(300)"
environment = None if os.environ["RANK"] == "0" else {}
subprocess.Popen([sys.executable, "-c", code, "pid" + os.environ["RANK"]], start_new_session=True, env=environment)
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_child_in_a_session_of_its_own_is_ended_too(tmp_path: Path, interrupted: bool) -> None:
    """That of rank 1 has no environment either."""
    (tmp_path / "away.py").write_text(AWAY)
    process = start(tmp_path, "--in-place", "away.py", over=tmp_path / "over")
    wait_for_both(process, tmp_path)
    if interrupted:
        process.send_signal(signal.SIGINT)
    else:
        (tmp_path / "over").touch()
    process.communicate(timeout=600)
    assert process.returncode == (130 if interrupted else 2)
    assert not left(tmp_path)


def test_an_interrupt_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLEEPING)
    process = start(tmp_path, "--in-place", "slow.py")
    wait_for_both(process, tmp_path)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert process.returncode == 130
    assert not left(tmp_path)


def test_without_pytorch_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(command, [str(ROOT / "tests" / "__init__.py")])
    assert "Error: PyTorch is not installed: pip install 'fsdp2lint[verify]'" in result.output


@pytest.mark.parametrize(
    "words", [[], ["--nproc", "0", "x.py"], ["--patch", "nothing", "train.py"]]
)
def test_slips_of_the_command_line(words: list[str]) -> None:
    assert CliRunner().invoke(command, words).exit_code == 2
