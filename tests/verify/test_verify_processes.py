"""``fsdp2lint verify`` and what it starts: side by side, interrupted, out of time, with a rank that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from .scenes import ROOT

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc"),
]

TRAINING = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SLEEPING = """
import os, pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(os.environ["AWAKE"], os.environ["RANK"]).touch(), time.sleep(600)
"""


class Started:
    """A verification with a temporary folder of its own, whose processes can be told from all others."""

    def __init__(self, folder: Path, *words: object) -> None:
        self.mark = f"verify-{uuid4()}"
        self.temporary, self.awake = folder / f"{self.mark}-tmp", folder / f"{self.mark}-awake"
        self.temporary.mkdir()
        self.awake.mkdir()
        own = {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "MARK": self.mark}
        own |= {"TMPDIR": str(self.temporary), "AWAKE": str(self.awake)}
        self.over = folder / f"{self.mark}-over"
        """The time is over when this is there."""
        program = ["tests.support.over", str(self.over), "verify", "-q"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *program, *map(str, words)],
            cwd=folder,
            env=os.environ | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # a shell that starts the tests in the background has them ignore the signal
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def wait_for_ranks(self) -> None:
        deadline = time.monotonic() + 300
        while len(list(self.awake.iterdir())) < 2:
            assert time.monotonic() < deadline, self.process.communicate()
            time.sleep(0.05)

    def ended(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=600)
        return self.process.returncode, out + err

    def left(self) -> list[str]:
        """The processes of this run that are alive, and its files."""
        deadline = time.monotonic() + 60
        while (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.05)  # a killed process takes a moment to go
        files = self.temporary.iterdir()
        # the cache of compiled kernels is PyTorch's own, and meant to stay
        return alive + [str(f) for f in files if not f.name.startswith("torchinductor")]

    def _alive(self) -> list[str]:
        wanted = f"MARK={self.mark}\0".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if wanted in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found


def test_the_search_for_processes_finds_them(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLEEPING)
    started = Started(tmp_path, "slow.py", "slow.py")
    started.wait_for_ranks()
    # this program, the process that forks, the agent, two ranks and their children
    assert len(started._alive()) == 7
    assert list(started.temporary.iterdir())
    started.process.send_signal(signal.SIGINT)
    code, out = started.ended()
    assert (code, out.strip()) == (130, "interrupted")
    assert started.left() == []


def test_an_end_from_outside_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLEEPING)
    started = Started(tmp_path, "slow.py", "slow.py")
    started.wait_for_ranks()
    started.process.terminate()
    time.sleep(0.2)
    started.process.terminate()  # who waits for the end may ask twice
    code, _ = started.ended()
    assert code == 128 + signal.SIGTERM
    assert started.left() == []


def test_killed_at_once_no_process_is_left(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLEEPING.replace("subprocess.Popen", "print"))
    started = Started(tmp_path, "slow.py", "slow.py")
    started.wait_for_ranks()
    started.process.kill()
    started.ended()
    assert [one for one in started.left() if not one.startswith(str(tmp_path))] == []


def test_time_that_is_over_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLEEPING)
    started = Started(tmp_path, "slow.py", "slow.py")
    started.wait_for_ranks()
    started.over.touch()
    code, out = started.ended()
    assert code == 2
    assert "BEFORE could not be run to its end:\nthe time was over:\n" in out
    assert "rank 0 waited at slow.py:4" in out
    assert out.endswith("Not verified: BEFORE failed.\n")
    assert started.left() == []


def test_two_at_once_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    both = [Started(tmp_path, "train.py", "train.py") for _ in range(2)]
    for started in both:
        code, out = started.ended()
        assert code == 0, out
        assert out.endswith("Equal: rung 3 of 4 (run on CPU).\n")
        assert started.left() == []


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (
            "import helper\nhelper.load()\n",
            "rank 0 raised at helper.py:2\n"
            "  train.py:3 in <module>\n    helper.load()\n"
            "  helper.py:2 in load\n    return open('gone')\n"
            "  FileNotFoundError: [Errno 2] No such file or directory: 'gone'\n",
        ),
        ("import signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "rank 0 died at train.py:3\n"),
        ("import sys\nsys.exit(3)\n", "rank 0 raised at train.py:3\n"),
    ],
    ids=["raises", "dies", "leaves"],
)
def test_a_rank_that_fails_is_told_first_and_whose_it_is(
    tmp_path: Path, fails: str, said: str
) -> None:
    (tmp_path / "helper.py").write_text("def load():\n    return open('gone')\n")
    (tmp_path / "train.py").write_text("import os\n" + fails)
    code, out = Started(tmp_path, "--nproc", "1", "train.py", "train.py").ended()
    assert code == 2
    assert f"BEFORE could not be run to its end:\n{said}" in out
    assert "torch/distributed" not in out, "frames that are not the script's"
    assert "ChildFailedError" not in out
    assert out.endswith("Not verified: BEFORE failed.\n")
