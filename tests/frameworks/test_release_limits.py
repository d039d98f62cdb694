"""The newest release of a framework that a project's dependencies allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.config.target import Targets, limits_in
from tests.support.running import invoke

FSDP2 = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"


@pytest.mark.parametrize(
    ("requirement", "lacks"),
    [
        ("accelerate==1.5.2", True),
        ("accelerate ~= 1.5.2", True),
        ("accelerate~=1.5", False),
        ("accelerate<1.6", True),
        ("accelerate<=1.6", False),
        ("accelerate>=0.3,<2", False),
        ("accelerate==1.5.*", True),
        ("accelerate==1.6.*", False),
        ("accelerate[testing]==1.2 ; python_version > '3'", True),
        ("accelerate==0.34.2 --hash=sha256:1", True),
        ("accelerate>=0.33", False),
        ("accelerate", False),
        ("accelerate-tools==0.1", False),
        ("accelerate @ git+https://github.com/huggingface/accelerate", False),
    ],
)
def test_what_a_requirement_allows(requirement: str, lacks: bool) -> None:
    limits = dict(limits_in([requirement]))
    assert ("accelerate" in limits and limits["accelerate"].lacks((1, 6, 0))) is lacks


def test_requirements_for_several_machines_allow_the_newest() -> None:
    limits = limits_in(["accelerate==1.5.0; sys_platform == 'x'", "accelerate==1.12.0"])
    assert not dict(limits)["accelerate"].lacks((1, 6, 0))
    assert limits_in(["accelerate==1.5.0; sys_platform == 'x'", "accelerate"]) == ()


FILES = {
    "requirements.txt": "torch\naccelerate==1.5.2\n",
    "pyproject.toml": "[project]\nname = 'x'\ndependencies = ['accelerate<1.6']\n",
    "setup.py": "from setuptools import setup\nsetup(install_requires=['accelerate==1.2'])\n",
    "setup.cfg": "[options]\ninstall_requires =\n    accelerate==1.2\n",
}


@pytest.mark.parametrize("name", FILES)
def test_each_file_of_dependencies_counts(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    (tmp_path / ".git").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "fsdp.yaml").write_text(FSDP2)
    done = invoke("check", "-q", "-f", "concise", ".", cwd=tmp_path)
    assert "configs/fsdp.yaml:3:3: FSDP610" in done.stdout
    (tmp_path / name).write_text(FILES[name].replace("1.5.2", "1.7").replace("1.2", "1.7"))
    done = invoke("check", "-q", "-f", "concise", ".", cwd=tmp_path)
    assert ("FSDP610" in done.stdout) is (name == "pyproject.toml")


def test_poetry_counts(tmp_path: Path) -> None:
    tools = '[tool.poetry.dependencies]\naccelerate = "^0.34"\ntorch = "^2.6"\n'
    (tmp_path / "pyproject.toml").write_text(tools)
    targets = Targets()
    assert dict(targets.limits(str(tmp_path)))["accelerate"].lacks((1, 6, 0))
    assert targets.around(str(tmp_path)) == "2.6"


INSTALLS = {
    "install.sh": "conda create --name x\npip install transformers==4.51.3\npip install accelerate==0.33.0\n",
    "Dockerfile": "FROM python\nRUN pip install --no-cache-dir \\\n    'accelerate<1.6' \\\n    trl && rm -rf /x\n",
    "README.md": "# x\n\n```bash\nuv pip install accelerate~=0.33\n```\n",
    "environment.yml": "dependencies:\n  - python=3.10\n  - accelerate=0.33.0\n",
    ".github/workflows/ci.yml": "jobs:\n  a:\n    steps:\n      - run: pip install accelerate==1.5\n",
}


@pytest.mark.parametrize("name", INSTALLS)
def test_commands_that_install_count(tmp_path: Path, name: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(INSTALLS[name])
    folder = tmp_path / "configs"
    folder.mkdir()
    assert dict(Targets().limits(str(folder)))["accelerate"].lacks((1, 6, 0))
    (tmp_path / "INSTALL.md").write_text("Run `pip install -U accelerate`.\n")
    assert "accelerate" not in dict(Targets().limits(str(folder)))


def test_lists_of_dependencies_come_before_commands(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "install.sh").write_text("pip install accelerate==0.33 torch==2.1\n")
    assert Targets().around(str(tmp_path)) is None
    (tmp_path / "requirements.txt").write_text("accelerate>=1.6\n")
    assert Targets().limits(str(tmp_path)) == ()


@pytest.mark.parametrize(
    "command",
    [
        "pip install git+https://github.com/huggingface/accelerate.git@main",
        "pip install -e .",
        "pip install accelerate-tools==0.1  # accelerate",
        "echo accelerate==0.33",
    ],
)
def test_a_command_that_pins_nothing(tmp_path: Path, command: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "run.sh").write_text(f"{command}\n")
    assert Targets().limits(str(tmp_path)) == ()


LIGHTNING = """\
import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import FSDPStrategy


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        return self(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


pl.Trainer(strategy=FSDPStrategy(), devices=2).fit(Model(), [torch.randn(4, 8)])
"""


@pytest.mark.parametrize(
    ("requirement", "older"),
    [("lightning==2.2.5", True), ("pytorch-lightning<2.3", True), ("lightning>=2.2", False)],
)
def test_lightning_is_left_where_its_release_has_no_fsdp2(
    tmp_path: Path, requirement: str, older: bool
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text(f"{requirement}\n")
    (tmp_path / "train.py").write_text(LIGHTNING)
    shown = invoke("migrate", "train.py", cwd=tmp_path).stdout
    assert ("version 2 needs" in shown) is older
    assert ("ModelParallelStrategy(data_parallel_size=2" in shown) is not older
