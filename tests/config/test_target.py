"""Which torch release a project is for: read from its own dependencies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.test_config import write
from tests.support.running import CLEAN, invoke


@pytest.mark.parametrize(
    ("files", "target"),
    [
        ({"pyproject.toml": "[project]\ndependencies = ['torch>=2.8,<3', 'numpy']\n"}, "2.8"),
        (
            {"pyproject.toml": "[project]\ndependencies = ['torch >= 2.7.1 ; sys_platform']\n"},
            "2.7.1",
        ),
        ({"pyproject.toml": "[project]\ndependencies = ['torch~=2.9']\n"}, "2.9"),
        ({"pyproject.toml": "[project]\ndependencies = ['torch', 'torchvision>=9']\n"}, "2.6"),
        ({"pyproject.toml": "[project]\ndependencies = ['torch>=2.1']\n"}, "2.6"),
        ({"pyproject.toml": "[project.optional-dependencies]\na = ['torch==2.10']\n"}, "2.10"),
        (
            {
                "pyproject.toml": "[dependency-groups]\ndev = ['torch>=2.7', {include-group = 'x'}]\n"
            },
            "2.7",
        ),
        ({"pyproject.toml": "[tool.poetry.dependencies]\ntorch = '^2.8'\n"}, "2.8"),
        ({"pyproject.toml": "[tool.poetry.dependencies]\nTorch = '^2.9 || ^2.7'\n"}, "2.7"),
        (
            {
                "pyproject.toml": "[tool.poetry.dependencies]\n"
                "torch = [{version = '2.9', markers = 'x'}, {version = '~2.8', markers = 'y'}]\n"
            },
            "2.8",
        ),
        ({"pyproject.toml": "[tool.poetry.group.gpu.dependencies]\ntorch = '>=2.8'\n"}, "2.8"),
        ({"pyproject.toml": "[tool.uv]\ndev-dependencies = ['torch>=2.8']\n"}, "2.8"),
        ({"requirements/base.txt": "numpy\n", "requirements/gpu.in": "torch>=2.8\n"}, "2.8"),
        ({"requirements.in": "torch>=2.7\n", "requirements.txt": "torch==2.9.1\n"}, "2.7"),
        ({"setup.py": "", "requirements.txt": "# torch>=9\ntorch>=2.9  # cuda\n"}, "2.9"),
        ({"setup.py": "", "requirements-gpu.txt": "torch==2.8.0+cu126\n"}, "2.8.0"),
        ({"pyproject.toml": "[broken\n", "requirements.txt": "torch>=2.8\n"}, "2.8"),
        ({}, "2.6"),
    ],
)
def test_the_target_is_read_from_the_dependencies(
    tmp_path: Path, files: dict[str, str], target: str
) -> None:
    (tmp_path / ".git").mkdir()
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    write(tmp_path, x__py=CLEAN)
    assert f'target-torch = "{target}"\n' in invoke("check", "--show-settings", cwd=tmp_path).stdout


def test_the_target_decides_what_runs(tmp_path: Path) -> None:
    write(tmp_path, x__py="from torch.distributed._composable.fsdp import fully_shard\n")
    before = invoke("check", "-v", "--extend-select", "FSDP501", cwd=tmp_path).stderr
    write(tmp_path, pyproject__toml="[project]\ndependencies = ['torch>=2.13']\n")
    after = invoke("check", "-v", "--extend-select", "FSDP501", cwd=tmp_path).stderr
    assert before.split(", ")[2] != after.split(", ")[2]
