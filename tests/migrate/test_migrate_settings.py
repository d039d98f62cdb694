"""``migrate`` and ``trace`` under a configuration: exclusions, the torch release, what is told of functions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.running import invoke

WRAPPED = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Linear(8, 8))
"""

GUARDED = """\
import torch
from acme import parallel
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
weights = model.state_dict()
state = FSDP.optim_state_dict(model, optimizer)
if parallel.is_chief():
    torch.save({"model": weights, "optimizer": state}, "last.pt")
"""

KNOWLEDGE = '[knowledge]\nrank-guards = ["acme.parallel.is_chief"]\n'


def changed(folder: Path, *words: str) -> list[str]:
    shown = invoke("migrate", "-q", "-f", "json", "--launch", "torchrun", *words, cwd=folder)
    assert shown.returncode < 2, shown.stderr
    names: list[str] = json.loads(shown.stdout)["changed"]
    return names


def configured(folder: Path, text: str) -> None:
    (folder / "fsdp2lint.toml").write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("train.py", "old/train.py", "vendored/deep.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(WRAPPED)
    (tmp_path / "old" / "go.sh").write_text("python -m torch.distributed.launch train.py\n")
    return tmp_path


def test_configured_exclusions_hold(tree: Path) -> None:
    everything = ["old/go.sh", "old/train.py", "train.py", "vendored/deep.py"]
    assert sorted(changed(tree)) == everything
    configured(tree, 'extend-exclude = ["old", "vendored/*.py"]\n')
    assert changed(tree) == ["train.py"]
    assert sorted(changed(tree, "--isolated")) == everything
    assert changed(tree, "--extend-exclude", "train.py") == []


def test_another_configuration_file(tree: Path) -> None:
    (tree / "other.toml").write_text('extend-exclude = ["old", "vendored"]\n')
    assert changed(tree, "--config", "other.toml") == ["train.py"]
    assert "old/go.sh" not in changed(tree, "--config", 'extend-exclude=["old"]')


def test_what_git_ignores_stays_unless_the_configuration_says_otherwise(tree: Path) -> None:
    (tree / ".git").mkdir()
    (tree / ".gitignore").write_text("old/\n")
    assert "old/train.py" not in changed(tree)
    configured(tree, "respect-gitignore = false\n")
    assert "old/train.py" in changed(tree)


META = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
model = FSDP(model, ignored_modules=[model[0]])
"""


def test_the_release_is_that_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(META)

    def requirement(*words: str) -> str:
        (tmp_path / "requirements.txt").write_text("torch>=2.3\n")
        return invoke("migrate", *words, cwd=tmp_path).stdout

    assert "+torch>=2.7" in requirement("--target-torch", "2.7")
    configured(tmp_path, 'target-torch = "2.8"\n')
    assert "+torch>=2.8" in requirement()
    assert "+torch>=2.7" in requirement("--target-torch", "2.7")
    configured(tmp_path, 'target-torch = "new"\n')
    wrong = invoke("migrate", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "`new` is not a torch version" in wrong.stderr


def test_what_is_told_of_functions_is_known(tmp_path: Path) -> None:
    """A test of unseen code may be one for the rank: below it no rank may be asked to come."""
    (tmp_path / "train.py").write_text(GUARDED)
    unknown = invoke("migrate", cwd=tmp_path).stdout
    assert "dcp.save(" not in unknown
    assert "stays one file: it is unknown whether all ranks reach it" in unknown
    configured(tmp_path, KNOWLEDGE)
    shown = invoke("migrate", cwd=tmp_path).stdout
    assert '+dcp.save({"model": weights, "optimizer": state}, checkpoint_id="last")' in shown


def test_trace_knows_it_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GUARDED)
    configured(tmp_path, KNOWLEDGE)
    assert "saved weights and state with save  [when rank == 0]" in _told(tmp_path)
    assert "[when rank == 0]" not in _told(tmp_path, "--isolated")


def _told(folder: Path, *words: str) -> str:
    return invoke("trace", *words, "train.py", cwd=folder).stdout


@pytest.mark.parametrize("command", ["migrate", "trace"])
def test_a_wrong_configuration_is_said(tmp_path: Path, command: str) -> None:
    (tmp_path / "train.py").write_text(WRAPPED)
    configured(tmp_path, 'knowlege = "x"\n')
    shown = invoke(command, "train.py", cwd=tmp_path)
    assert shown.returncode == 2
    assert "knowlege" in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("requirement", "done"),
    [("accelerate==0.33.0", False), ("accelerate>=0.33", True), ("accelerate~=1.6", True)],
)
def test_settings_that_no_allowed_release_would_read_are_left(
    tmp_path: Path, requirement: str, done: bool
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text(f"{requirement}\ntorch>=2.6\n")
    settings = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
    (tmp_path / "fsdp.yaml").write_text(settings)
    plugin = "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n"
    plugin += "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(use_orig_params=True))\n"
    (tmp_path / "train.py").write_text(plugin)
    shown = invoke("migrate", ".", cwd=tmp_path).stdout
    assert ("+  fsdp_version: 2" in shown) == done
    assert ("fsdp_version=2" in shown) == done
    wanted = f"the project asks for `{requirement}`, and version 2 needs accelerate >= 1.6"
    assert shown.count(wanted) == (0 if done else 2)
