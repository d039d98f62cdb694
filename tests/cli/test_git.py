"""Runs that begin with git: ``--staged``, ``--changed``, ``--since``, and what a hook passes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.config.test_config import LATE
from tests.support.running import CLEAN, invoke

HELPER = """\
from torch.distributed.fsdp import fully_shard


def shard(model):
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
"""

TRAIN = """\
import torch
from torch import nn

from {module} import shard


def main():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    shard(model)
    model(torch.ones(4)).sum().backward()
    optimizer.step()


main()
"""
"""A program that says nothing of FSDP itself."""


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "old.py").write_text(LATE)
    (tmp_path / "edited.py").write_text(CLEAN)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def found(folder: Path, *args: str) -> list[str]:
    shown = invoke("check", "-f", "json", *args, cwd=folder)
    assert shown.returncode in (0, 1), shown.stderr
    return [f"{one['filename']}:{one['code']}" for one in json.loads(shown.stdout)]


def test_changed(repository: Path) -> None:
    assert found(repository, "--changed") == []
    (repository / "edited.py").write_text(LATE)
    (repository / "new é.py").write_text(LATE)
    (repository / "gone.py").write_text(LATE)
    git(repository, "add", "gone.py")
    (repository / "gone.py").unlink()
    (repository / ".gitignore").write_text("ignored.py\n")
    (repository / "ignored.py").write_text(LATE)
    assert found(repository, "--changed") == ["edited.py:FSDP201", "new é.py:FSDP201"]
    git(repository, "add", "edited.py")
    assert found(repository, "--changed", "edited.py") == ["edited.py:FSDP201"]
    assert found(repository, "--changed", "--extend-exclude", "new*") == ["edited.py:FSDP201"]


def test_changed_below_a_folder_and_from_inside_one(repository: Path) -> None:
    (repository / "pkg").mkdir()
    (repository / "pkg" / "a.py").write_text(LATE)
    (repository / "b.py").write_text(LATE)
    assert found(repository, "--changed", "pkg") == ["pkg/a.py:FSDP201"]
    assert found(repository / "pkg", "--changed") == ["a.py:FSDP201"]
    assert found(repository / "pkg", "--changed", "..") == ["../b.py:FSDP201", "a.py:FSDP201"]


def test_changed_before_the_first_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text(LATE)
    git(tmp_path, "add", "a.py")
    assert found(tmp_path, "--changed") == ["a.py:FSDP201"]
    assert found(tmp_path, "--staged") == ["a.py:FSDP201"]


def test_since_where_the_branch_began(repository: Path) -> None:
    git(repository, "checkout", "-q", "-b", "topic")
    (repository / "topic.py").write_text(LATE)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "topic")
    git(repository, "checkout", "-q", "main")
    (repository / "elsewhere.py").write_text(LATE)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "elsewhere")
    git(repository, "checkout", "-q", "topic")
    assert found(repository, "--since", "main") == ["topic.py:FSDP201"]
    (repository / "loose.py").write_text(LATE)
    assert found(repository, "--since", "main") == ["loose.py:FSDP201", "topic.py:FSDP201"]


def test_staged_means_what_would_be_committed(repository: Path) -> None:
    (repository / "edited.py").write_text(LATE)
    assert found(repository, "--staged") == []
    git(repository, "add", "edited.py")
    (repository / "edited.py").write_text(CLEAN)  # mended, but not staged
    assert found(repository, "--staged") == ["edited.py:FSDP201"]
    git(repository, "add", "edited.py")
    (repository / "edited.py").write_text(LATE)  # broken again, but not staged
    assert found(repository, "--staged") == []


def test_staged_shows_the_staged_text(repository: Path) -> None:
    (repository / "edited.py").write_text("\n\n" + LATE)
    git(repository, "add", "edited.py")
    (repository / "edited.py").write_text("x = 1\n")
    shown = invoke("check", "--staged", cwd=repository).stdout
    assert "edited.py:10:17" in shown
    assert "10 |     optimizer = torch.optim.AdamW(model.parameters())" in shown


def test_staged_imports_are_seen_as_staged(repository: Path) -> None:
    (repository / "helper.py").write_text(HELPER)
    (repository / "train.py").write_text(TRAIN.format(module="helper"))
    git(repository, "add", ".")
    (repository / "helper.py").write_text("def shard(model):\n    pass\n")
    assert found(repository, "--staged") == ["train.py:FSDP201"]
    (repository / "helper.py").unlink()
    assert found(repository, "--staged") == ["train.py:FSDP201"]


def test_documents_are_found_where_they_are_looked_for(repository: Path) -> None:
    (repository / "doc.md").write_text(f"```python\n{LATE}```\n")
    (repository / "notes.rst").write_text("fully_shard\n")
    for flag in ("--changed", "--staged"):
        assert found(repository, flag) == []
        assert found(repository, flag, "--extension", "md:markdown") == ["doc.md:FSDP201"]
        assert found(repository, flag, "doc.md") == ["doc.md:FSDP201"]
        git(repository, "add", ".")
    (repository / "doc.md").write_text("nothing\n")
    assert found(repository, "--staged", "doc.md") == ["doc.md:FSDP201"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--since", "nowhere"], "git merge-base: fatal: Not a valid object name nowhere"),
        (["--staged", "--changed"], "--staged and --changed cannot be used together"),
        (["--staged", "--fix"], "--staged checks what would be committed"),
        (["--staged", "-"], "--staged is about files, not standard input"),
    ],
)
def test_slips(repository: Path, args: list[str], said: str) -> None:
    shown = invoke("check", *args, cwd=repository)
    assert shown.returncode == 2
    assert said in shown.stderr


def test_outside_of_a_repository(tmp_path: Path) -> None:
    shown = invoke("check", "--changed", cwd=tmp_path, GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
    assert shown.returncode == 2
    assert "not a git repository" in shown.stderr


def test_inside_a_hook_the_environment_names_the_repository(repository: Path) -> None:
    (repository / "edited.py").write_text(LATE)
    git(repository, "add", ".")
    named = {"GIT_DIR": ".git", "GIT_INDEX_FILE": ".git/index"}
    shown = invoke("check", "--staged", "-f", "concise", cwd=repository, **named)
    assert shown.stdout.startswith("edited.py:8:17: FSDP201")


class TestAProgramWithoutAMarker:
    """A hook passes ``train.py`` alone; what it imports decides whether it is looked at."""

    @pytest.mark.parametrize("module", ["helper", "pkg.helper", "pkg"])
    def test_that_imports_a_helper(self, tmp_path: Path, module: str) -> None:
        (tmp_path / "pkg").mkdir()
        (tmp_path / "pkg" / "__init__.py").write_text("from .helper import shard\n")
        (tmp_path / "pkg" / "helper.py").write_text(HELPER)
        (tmp_path / "helper.py").write_text(HELPER)
        (tmp_path / "train.py").write_text(TRAIN.format(module=module))
        assert found(tmp_path, "train.py") == ["train.py:FSDP201"]
        assert found(tmp_path) == ["train.py:FSDP201"]

    def test_that_leads_to_one_through_another(self, tmp_path: Path) -> None:
        (tmp_path / "helper.py").write_text(HELPER)
        (tmp_path / "between.py").write_text("import torch\nfrom helper import shard\n")
        (tmp_path / "train.py").write_text(TRAIN.format(module="between"))
        assert found(tmp_path, "train.py") == ["train.py:FSDP201"]

    def test_findings_only_in_what_was_passed(self, tmp_path: Path) -> None:
        (tmp_path / "helper.py").write_text(HELPER + "x = 1  # fsdp2lint: ignore[FSDP777]\n")
        (tmp_path / "train.py").write_text(TRAIN.format(module="helper"))
        assert found(tmp_path, "train.py") == ["train.py:FSDP201"]
        assert found(tmp_path, "helper.py") == ["helper.py:FSDP902"]

    def test_that_leads_nowhere(self, tmp_path: Path) -> None:
        (tmp_path / "helper.py").write_text("import train\n\n\ndef shard(model):\n    pass\n")
        (tmp_path / "train.py").write_text(TRAIN.format(module="helper"))
        shown = invoke("check", "train.py", cwd=tmp_path)
        assert shown.stdout == "No FSDP code found in 1 file; nothing was checked.\n"

    def test_that_was_changed(self, repository: Path) -> None:
        (repository / "helper.py").write_text(HELPER)
        git(repository, "add", ".")
        git(repository, "commit", "-q", "-m", "helper")
        (repository / "train.py").write_text(TRAIN.format(module="helper"))
        assert found(repository, "--changed") == ["train.py:FSDP201"]


def test_an_empty_list_of_changed_files_is_no_error(repository: Path) -> None:
    for flag in ("--changed", "--staged"):
        shown = invoke("check", flag, cwd=repository)
        assert (shown.returncode, shown.stdout) == (
            0,
            "No Python files found; nothing was checked.\n",
        )


def test_names_are_bytes(repository: Path) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    try:
        (repository / name).write_text(LATE)
    except OSError:
        pytest.skip("this file system refuses such names")
    git(repository, "add", ".")
    assert found(repository, "--staged") == ["caf\\xe9.py:FSDP201"]
