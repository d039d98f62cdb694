"""The hooks for pre-commit, tried with pre-commit itself, and the GitHub action."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from fsdp2lint.cli.program import program as commands
from tests.cli.test_git import HELPER, TRAIN, git
from tests.config.test_config import LATE
from tests.support.notebooks import written
from tests.support.running import CLEAN, ROOT


def hooks() -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    return read


def known_options(name: str) -> set[str]:
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    return {o for p in command.params for o in (*p.opts, *p.secondary_opts)}


def test_the_hooks_call_what_exists() -> None:
    assert [hook["id"] for hook in hooks()] == ["fsdp2lint", "fsdp2lint-fix"]
    for hook in hooks():
        program, command, *options = hook["entry"].split()
        assert (program, command) == ("fsdp2lint", "check")
        assert set(options) <= known_options("check")
        assert "--force-exclude" in options, "pre-commit names the files, also excluded ones"
        assert hook["require_serial"] is True


def test_the_action_calls_what_exists() -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    script = action["runs"]["steps"][-1]["run"]
    assert set(re.findall(r"(?<!\w)--[a-z-]+", script)) <= known_options("check")
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert used == set(action["inputs"])


@pytest.mark.skipif(sys.platform == "win32", reason="needs bash")
def test_the_action_runs(tmp_path: Path) -> None:
    """Its last step as GitHub would run it, with this checkout as what was installed."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    binary = tmp_path / "fsdp2lint" / "bin" / "fsdp2lint"
    binary.parent.mkdir(parents=True)
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m fsdp2lint "$@"\n')
    binary.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    (work / "late.py").write_text(LATE)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", action["runs"]["steps"][-1]["run"]],
        cwd=work,
        env=os.environ
        | {
            "RUNNER_TEMP": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "PATHS": ".",
            "ARGS": "--select FSDP2 --no-cache",
            "SARIF": "out.sarif",
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("::error title=fsdp2lint (FSDP201),file=late.py,line=8,")
    assert (work / "out.sarif").exists()
    assert "| late.py:8 |" in (tmp_path / "summary.md").read_text()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git repository with our hooks, run from this checkout, so that nothing is downloaded."""
    ours = [
        hook
        | {
            "language": "system",
            "entry": hook["entry"].replace("fsdp2lint", f"{sys.executable} -m fsdp2lint", 1),
        }
        for hook in hooks()
    ]
    git(tmp_path, "init", "-q", "-b", "main")
    config = {"repos": [{"repo": "local", "hooks": ours[:1]}]}
    (tmp_path / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def pre_commit(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--color", "never", *args],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "PRE_COMMIT_HOME": str(folder / ".git" / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_nothing_to_check(repository: Path) -> None:
    (repository / "notes.txt").write_text("x")
    git(repository, "add", ".")
    assert pre_commit(repository).returncode == 0


def test_only_the_program_changed(repository: Path) -> None:
    (repository / "helper.py").write_text(HELPER)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "helper")
    (repository / "train.py").write_text(TRAIN.format(module="helper"))
    git(repository, "add", ".")
    done = pre_commit(repository)
    assert done.returncode == 1, done.stdout
    assert "FSDP201" in done.stdout


def test_a_notebook(repository: Path) -> None:
    written(repository / "late.ipynb")
    git(repository, "add", ".")
    done = pre_commit(repository)
    assert done.returncode == 1, done.stdout
    assert "late.ipynb:cell 3:3:13" in done.stdout


def test_partially_staged_files(repository: Path) -> None:
    file = repository / "x.py"
    file.write_text(CLEAN)
    git(repository, "add", ".")
    file.write_text(LATE)
    assert pre_commit(repository).returncode == 0
    assert file.read_text() == LATE
    git(repository, "add", ".")
    file.write_text(CLEAN)
    assert pre_commit(repository).returncode == 1
    assert file.read_text() == CLEAN


def test_nothing_is_wrong_with_an_empty_list(repository: Path) -> None:
    """A hook that pre-commit runs without any file: ``check`` must not take that for "everything here"."""
    (repository / "late.py").write_text(LATE)
    (repository / "gone.py").write_text(LATE)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "both", "--no-verify")
    (repository / "gone.py").unlink()
    git(repository, "add", ".")  # a commit that only deletes
    done = pre_commit(repository)
    assert done.returncode == 0, done.stdout
    assert "no files to check" in done.stdout


def test_the_fixing_hook(repository: Path) -> None:
    """It changes the file, fails the commit, and lets the next one through; what is not staged stays."""
    config = yaml.safe_load((repository / ".pre-commit-config.yaml").read_text())
    fixing = config["repos"][0]["hooks"][0] | {"id": "fsdp2lint-fix"}
    fixing["entry"] += " --fix"
    config["repos"][0]["hooks"] = [fixing]
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    file = repository / "x.py"
    unused = "x = 1  # fsdp2lint: ignore[FSDP203]\n"
    file.write_text(CLEAN + unused)
    git(repository, "add", ".")
    file.write_text(CLEAN + unused + "# not staged\n")
    assert pre_commit(repository).returncode == 1
    # the fix stands next to what pre-commit put aside: it is rolled back, and nothing is lost
    assert file.read_text() == CLEAN + unused + "# not staged\n"
    file.write_text(CLEAN + unused)
    git(repository, "add", ".")
    assert pre_commit(repository).returncode == 1
    assert file.read_text() == CLEAN + "x = 1\n"
    git(repository, "add", ".")
    assert pre_commit(repository).returncode == 0


def test_the_entry_that_init_writes(tmp_path: Path) -> None:
    """In the environment of the tests fsdp2lint is installed from a folder, which pre-commit cannot install."""
    git(tmp_path, "init", "-q", "-b", "main")
    subprocess.run(
        [sys.executable, "-m", "fsdp2lint", "init"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        timeout=600,
    )
    (tmp_path / "train.py").write_text(LATE)
    git(tmp_path, "add", ".")
    done = pre_commit(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "FSDP201" in done.stdout
