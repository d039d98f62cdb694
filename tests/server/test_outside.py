"""What is said of files that are passed without the programs that use them, as to a hook."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from fsdp2lint.server.app.desk import Desk
from tests.cli.test_git import found, git
from tests.support.running import invoke

COMMENT = "  # fsdp2lint: ignore[FSDP241] -- the caller will be mended"

PARALLEL = f"""\
from torch.distributed.fsdp import fully_shard


def shard(model, policy):
    fully_shard(model, mp_policy=policy){COMMENT}
"""

SETUP = (
    "import torch\nfrom parallel import shard\n\n\ndef prepare(model):\n    shard(model, None)\n"
)

TRAIN = "import torch\nfrom setup_model import prepare\n\nprepare(torch.nn.Linear(4, 4))\n"
"""Only a run that begins here shows what the comment is for."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "parallel.py").write_text(PARALLEL)
    (tmp_path / "src" / "setup_model.py").write_text(SETUP)
    (tmp_path / "train.py").write_text(TRAIN)
    assert found(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize("paths", [("src/parallel.py",), ("src",), ("src/parallel.py", "src")])
def test_a_comment_may_be_for_a_program_that_is_not_passed(
    project: Path, paths: tuple[str, ...]
) -> None:
    assert found(project, *paths) == []
    invoke("check", "--fix", *paths, cwd=project)
    assert (project / "src" / "parallel.py").read_text() == PARALLEL
    named = ("--stdin-filename", "src/parallel.py")
    shown = invoke("check", "--fix", "-", *named, cwd=project, text=PARALLEL)
    assert shown.stdout == PARALLEL


def test_where_nobody_else_imports_the_file_it_silences_nothing(project: Path) -> None:
    (project / "train.py").unlink()
    assert found(project, "src/parallel.py") == [], "another module imports it still"
    (project / "src" / "setup_model.py").unlink()
    assert found(project, "src/parallel.py") == ["src/parallel.py:FSDP901"]


def test_where_all_who_import_it_are_passed_it_silences_nothing(project: Path) -> None:
    (project / "train.py").write_text(TRAIN.replace("\nprepare(", "\nprint("))
    every = ("src/parallel.py", "src/setup_model.py", "train.py")
    (project / "src" / "setup_model.py").write_text(SETUP.replace("None", "policy()"))
    assert found(project) == found(project, *every) == ["src/parallel.py:FSDP901"]


def test_without_a_project_only_the_files_beside_it_count(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "parallel.py").write_text(PARALLEL)
    (tmp_path / "deeper" / "train.py").write_text(SETUP)
    assert found(tmp_path, "parallel.py") == ["parallel.py:FSDP901"]
    (tmp_path / "train.py").write_text(SETUP)
    assert found(tmp_path, "parallel.py") == []


def test_a_result_is_not_kept_for_another_company(project: Path) -> None:
    """The cache knows the difference between a file alone and with a program beside it."""
    (project / "train.py").rename(project / "train.txt")
    (project / "src" / "setup_model.py").rename(project / "setup.txt")
    assert found(project, "src/parallel.py") == ["src/parallel.py:FSDP901"]
    (project / "setup.txt").rename(project / "src" / "setup_model.py")
    assert found(project, "src/parallel.py") == []


def test_entries_of_a_baseline_are_not_stale_for_it(project: Path) -> None:
    (project / "src" / "parallel.py").write_text(PARALLEL.replace(COMMENT, ""))
    invoke("baseline", "create", cwd=project)
    for paths in (("src/parallel.py",), ("src",), (".",)):
        shown = invoke("check", *paths, cwd=project)
        assert (shown.returncode, shown.stderr) == (0, "")
    assert "0 dropped" in invoke("baseline", "prune", "src", cwd=project).stdout
    (project / "train.py").write_text("x = 1\n")
    (project / "src" / "setup_model.py").write_text("x = 1\n")
    assert invoke("check", "src/parallel.py", cwd=project).returncode == 1


def test_staged_without_its_program(project: Path) -> None:
    git(project, "init", "-q")
    git(project, "add", "src/parallel.py")
    assert found(project, "--staged") == []


def test_open_without_its_program(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    path = str(project / "src" / "parallel.py")
    buffers = {path: PARALLEL.encode()}
    desk = Desk()
    assert desk.check(buffers, threading.Event()) == []
    assert desk.fixed(buffers, path, threading.Event()) == []
