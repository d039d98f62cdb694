"""The guides for users of frameworks: their complete examples do what the pages say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.running import ROOT, invoke

GUIDES = ROOT / "docs" / "guides"


def examples(name: str) -> list[tuple[str, str]]:
    """The files of a page, each with the name in its first line."""
    text = (GUIDES / f"{name}.md").read_text("utf-8")
    found = re.findall(r"```(?:python|yaml|json)\n(.*?)```", text, re.DOTALL)
    return [(body.split("\n", 1)[0].removeprefix("# "), body) for body in found]


def laid_out(name: str, folder: Path) -> dict[str, str]:
    """Write the first of each file of a page; what is shown later is what it becomes."""
    wanted: dict[str, str] = {}
    for file, body in examples(name):
        if (folder / file).exists():
            wanted[file] = body
        else:
            (folder / file).write_text(body)
    return wanted


@pytest.mark.parametrize("name", ["accelerate"])
def test_the_files_become_what_the_page_shows(tmp_path: Path, name: str) -> None:
    wanted = laid_out(name, tmp_path)
    assert wanted
    shown = invoke("migrate", "--write", "-q", ".", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout
    assert {file: (tmp_path / file).read_text() for file in wanted} == wanted
    after = invoke("check", "--isolated", "-f", "concise", ".", cwd=tmp_path)
    assert after.returncode == 0, after.stdout
    assert "FSDP6" not in after.stdout


def verified(folder: Path, *words: str) -> str:
    """What ``verify`` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "fsdp2lint", "verify", "-q", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=600,
        check=False,
    )
    return done.stdout + done.stderr


def command(name: str, start: str) -> list[str]:
    """The words of a command that the page shows, without those of ours that come first."""
    text = (GUIDES / f"{name}.md").read_text("utf-8")
    (line,) = re.findall(rf"^{re.escape(start)}.*$", text, re.MULTILINE)
    return shlex.split(line.partition("#")[0])[2:]


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate runs itself")
def test_accelerate_does_the_same_and_reads_the_old_checkpoint(tmp_path: Path) -> None:
    laid_out("accelerate", tmp_path)
    (tmp_path / "old.yaml").write_text((tmp_path / "fsdp.yaml").read_text())
    assert invoke("migrate", "--write", "-q", "fsdp.yaml", cwd=tmp_path).returncode == 0
    told = verified(tmp_path, *command("accelerate", "fsdp2lint verify --resume"))
    assert "Equal: rung 3 of 4 (run on CPU)." in told
    for row in (
        "losses      8",
        "gradient norms      4",
        "parameters      8",
        "checkpoint/optimizer.bin     88",
        "checkpoint/pytorch_model_fsdp.bin      8",
    ):
        assert re.search(rf"{re.escape(row)}  equal", told), told


# -- the table ---------------------------------------------------------------------------------------------------

INDEX = (GUIDES / "frameworks.md").read_text("utf-8")
ROWS = re.findall(r"^\| (?!framework|setting|---)(.+?) \|", INDEX, re.MULTILINE)


@pytest.mark.parametrize(
    "name", ["accelerate, YAML", "Plugin", "Trainer", "TRL", "Lightning", "Ray"]
)
def test_the_table_has_a_row(name: str) -> None:
    assert any(name in row for row in ROWS)
