"""``--create-commits``: one commit for the settings and one for each model, and what each of them holds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.running import program

TRAIN = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = FSDP(nn.Linear(8, 8), use_orig_params=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(2, 8)).sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
SHARED = "def clip(model):\n    return model.clip_grad_norm_(1.0)\n"


def git(folder: Path, *words: str) -> str:
    name = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", *name, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def repository(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "init", "--quiet")
    git(folder, "config", "user.name", "t")
    git(folder, "config", "user.email", "t@example.org")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "begin")
    return folder


def states(folder: Path) -> list[tuple[str, dict[str, str]]]:
    """The subject and the files of each commit after the first."""
    found = []
    for one in git(folder, "log", "--reverse", "--format=%h %s").splitlines()[1:]:
        commit, _, subject = one.partition(" ")
        names = git(folder, "ls-tree", "--name-only", commit).split()
        texts = {name: git(folder, "show", f"{commit}:{name}") for name in names}
        found.append((subject.removeprefix("fsdp2lint: "), texts))
    return found


def test_each_model_is_a_commit_and_the_settings_are_one(tmp_path: Path) -> None:
    files = {"first.py": TRAIN, "second.py": TRAIN, "requirements.txt": "torch>=2.1\n"}
    folder = repository(tmp_path, files)
    program("migrate", "-q", "--create-commits", ".", cwd=folder)
    made = states(folder)
    assert [subject for subject, _ in made] == [
        "settings for FSDP2",
        "fully_shard for the model of first.py:8",
        "fully_shard for the model of second.py:8",
    ]
    settings, first, both = (texts for _, texts in made)
    assert settings == {**files, "requirements.txt": "torch>=2.6\n"}
    assert first["second.py"] == TRAIN
    assert "FSDP(" not in first["first.py"]
    assert "model.clip_grad_norm_" not in first["first.py"]
    assert both["second.py"] == both["first.py"] == first["first.py"]
    body = git(folder, "log", "--format=%b", "-1")
    assert "second.py:12 clip_grad_norm_ changed:" in body
    assert "first.py" not in body
    assert git(folder, "status", "--porcelain") == ""


def test_models_that_share_a_use_of_fsdp1_are_one_commit(tmp_path: Path) -> None:
    train = TRAIN.replace("model.clip_grad_norm_(1.0)", "clip(model)")
    train = train.replace("import torch\n", "import torch\nfrom shared import clip\n", 1)
    folder = repository(tmp_path, {"first.py": train, "second.py": train, "shared.py": SHARED})
    program("migrate", "-q", "--create-commits", ".", cwd=folder)
    ((subject, texts),) = states(folder)
    assert subject == "fully_shard for the model of first.py:9 and 1 more"
    assert not any("FSDP(" in text for text in texts.values())


@pytest.mark.parametrize("options", [(), ("--only", "fsdp-constructor,clip-grad-norm")])
def test_the_last_commit_is_what_write_writes(tmp_path: Path, options: tuple[str, ...]) -> None:
    files = {"first.py": TRAIN, "second.py": TRAIN}
    for name, how in (("one", "--create-commits"), ("other", "--write")):
        (tmp_path / name).mkdir()
        folder = repository(tmp_path / name, files)
        program("migrate", "-q", how, *options, ".", cwd=folder)
    for name in files:
        said = [(tmp_path / folder / name).read_text() for folder in ("one", "other")]
        assert said[0] == said[1] != TRAIN
