"""The guide for users of frameworks: its examples do what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.running import ROOT, invoke

GUIDE = (ROOT / "docs" / "guides" / "frameworks.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def test_the_settings_become_what_the_guide_shows(tmp_path: Path) -> None:
    before, after = blocks("yaml")
    (tmp_path / "fsdp.yaml").write_text(before)
    shown = invoke("migrate", "--write", "-q", "fsdp.yaml", cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout
    assert (tmp_path / "fsdp.yaml").read_text() == after
    assert invoke("check", "--isolated", "fsdp.yaml", cwd=tmp_path).returncode == 0


def test_the_arguments_of_the_trainer_get_the_version(tmp_path: Path) -> None:
    trainer, _ = blocks("python")
    (tmp_path / "train.py").write_text(trainer)
    assert invoke("migrate", "--write", "-q", "train.py", cwd=tmp_path).returncode == 0
    assert '"fsdp_version": 2' in (tmp_path / "train.py").read_text()


def test_the_module_for_lightning_is_recognised_and_silent(tmp_path: Path) -> None:
    _, lightning = blocks("python")
    (tmp_path / "train.py").write_text(lightning)
    shown = invoke("check", "--isolated", "-f", "concise", "train.py", cwd=tmp_path)
    assert "FSDP in 1 of 1 file" in shown.stdout
    assert "train.py:" not in shown.stdout.replace("followed", "").partition("\n")[0]


ROWS = re.findall(
    r"^\| (?!framework|setting|---)(.+?) \|", GUIDE.partition("## accelerate")[0], re.MULTILINE
)


@pytest.mark.parametrize(
    "name", ["accelerate, YAML", "Plugin", "Trainer", "TRL", "Lightning", "Ray"]
)
def test_the_table_has_a_row(name: str) -> None:
    assert any(name in row for row in ROWS)
