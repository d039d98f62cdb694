"""Commands that ask for FSDP1 by their options are reported as a settings file is, and as `migrate` reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.frameworks.options import asking_commands
from tests.support.running import invoke

WRAPPED = "--fsdp 'full_shard auto_wrap' --fsdp_transformer_layer_cls_to_wrap Block"
LAUNCH = "accelerate launch --use_fsdp"


@pytest.mark.parametrize(
    ("command", "asks"),
    [
        (f"{LAUNCH} train.py", ("accelerate", 1)),
        (f"{LAUNCH} --fsdp_version 1 train.py", ("accelerate", 1)),
        (f"{LAUNCH} --fsdp-version=2 train.py", ("accelerate", 2)),
        (f"{LAUNCH} --fsdp_version $VERSION train.py", ("accelerate", None)),
        ("accelerate launch \\\n  --use-fsdp \\\n  train.py", ("accelerate", 1)),
        (f"torchrun train.py {WRAPPED}", ("the Trainer", 1)),
        ("torchrun train.py --fsdp 'full_shard auto_wrap'", ("the Trainer", None)),
        ("python main.py fit --trainer.strategy=fsdp", ("Lightning", 1)),
        ("python main.py fit --trainer.strategy a.b.FSDPStrategy", ("Lightning", 1)),
        ("srun python main.py fit --trainer.strategy.class_path FSDPStrategy", ("Lightning", 1)),
        ("python main.py fit --trainer.strategy ddp", None),
        ("python main.py fit --trainer.strategy ModelParallelStrategy", None),
        (f"# {LAUNCH} train.py", None),
        (f"{LAUNCH} --config_file fsdp.yaml train.py", None),
        ("torchrun train.py --fsdp full_shard --fsdp_config fsdp.json", None),
        ("torchrun train.py --fsdp", None),
        ("echo --use_fsdp", None),
    ],
)
def test_how_a_command_asks(command: str, asks: tuple[str, int | None] | None) -> None:
    found = [(one.framework, one.version) for one in asking_commands(f"set -e\n{command}\n")]
    assert found == ([] if asks is None else [asks])


def reported(folder: Path, *words: str) -> list[str]:
    """The places of FSDP1 in commands."""
    shown = invoke("check", "-f", "concise", *words, cwd=folder).stdout
    return [
        line.partition(": FSDP601 This command")[0]
        for line in shown.splitlines()
        if "FSDP601" in line
    ]


@pytest.mark.parametrize("name", ["run.sh", "job.slurm", "Makefile"])
def test_each_command_is_reported_where_it_asks(tmp_path: Path, name: str) -> None:
    lines = (f"{LAUNCH} a.py", f"torchrun b.py {WRAPPED}", f"{LAUNCH} --fsdp_version 2 c.py")
    (tmp_path / name).write_text("".join(f"\t{line}\n" for line in lines))
    assert reported(tmp_path, ".") == [f"{name}:1:20", f"{name}:2:16"]
    assert reported(tmp_path, name) == [f"{name}:1:20", f"{name}:2:16"]


def test_a_comment_silences_it(tmp_path: Path) -> None:
    said = "# fsdp2lint: ignore[FSDP601]"
    (tmp_path / "run.sh").write_text(
        f"{LAUNCH} a.py  {said}\n{said}\n{LAUNCH} b.py\n{LAUNCH} c.py\n"
    )
    assert reported(tmp_path, ".") == ["run.sh:4:19"]


def test_the_project_may_allow_only_releases_whose_fsdp_is_fsdp1(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("torchrun train.py --fsdp 'full_shard auto_wrap'\n")
    assert reported(tmp_path, ".") == []
    project = '[project]\nname = "x"\nversion = "1"\ndependencies = ["transformers<5"]\n'
    (tmp_path / "pyproject.toml").write_text(project)
    assert reported(tmp_path, ".") == ["run.sh:1:19"]


def test_a_script_without_fsdp_is_not_checked(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python train.py\n")
    shown = invoke("check", "run.sh", cwd=tmp_path)
    assert "run.sh: not checked" in shown.stderr
    assert "nothing was checked" in shown.stdout


def test_what_is_reported_is_migrated(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{LAUNCH} a.py\ntorchrun b.py {WRAPPED}\n")
    assert invoke("migrate", "--write", "--allow-no-git", "run.sh", cwd=tmp_path).returncode == 0
    assert "--fsdp_version 2" in (tmp_path / "run.sh").read_text()
    assert reported(tmp_path, ".") == []
