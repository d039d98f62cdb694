"""Which settings a command gives to its script, in whatever way a shell script or a Makefile writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.frameworks.commands import commands
from fsdp2lint.system.files import Files
from tests.support.running import invoke

WHOLE = "accelerate launch --config_file configs/fsdp.yaml train.py --lr 1"
WAYS = {
    "a variable for the file": (
        "run.sh",
        'CONFIG="configs/fsdp.yaml"\naccelerate launch --config_file $CONFIG train.py --lr 1\n',
    ),
    "a default": (
        "run.sh",
        "CONFIG=${1:-configs/fsdp.yaml}\naccelerate launch --config_file ${CONFIG} train.py --lr 1\n",
    ),
    "launcher and program": (
        "run.slurm",
        'export LAUNCHER="accelerate launch \\\n    --config_file configs/fsdp.yaml \\\n    --rdzv_conf "rdzv_backend=c10d" \\\n    "\n'
        "export PROGRAM='train.py --lr 1'\nsrun --jobid $ID bash -c \"$LAUNCHER $PROGRAM\" 2>&1 | tee log\n",
    ),
    "what is appended": (
        "run.bash",
        'CMD="accelerate launch"\nif [ -n "$X" ]; then\n  CMD+=" --config_file configs/fsdp.yaml"\nfi\nARGS=""\nARGS+="--lr 1"\n$CMD train.py $ARGS\n',
    ),
    "an array": (
        "run.sh",
        'cmd=(\n  accelerate launch\n  --config_file "configs/fsdp.yaml"\n)\ncmd+=(train.py --lr 1)\n"${cmd[@]}"\n',
    ),
    "a Makefile": (
        "Makefile",
        "CONFIG ?= configs/fsdp.yaml\ntrain:\n\taccelerate launch --config_file $(CONFIG) train.py --lr 1\n",
    ),
    "a page": ("README.md", f"```bash\n{WHOLE}\n```\n"),
    "a function": ("run.sh", f"start() {{\n  (cd .. && {WHOLE})\n}}\n"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_command_is_read_through_its_variables(tmp_path: Path, way: str) -> None:
    name, text = WAYS[way]
    (tmp_path / name).write_text(text)
    found = [c for c in commands([str(tmp_path / name)], Files()) if c.script == "train.py"]
    assert found
    assert all(c.by_accelerate for c in found)
    assert all(c.options["config_file"] == "configs/fsdp.yaml" for c in found)
    assert all(c.arguments["lr"] == "1" for c in found)


@pytest.mark.parametrize(
    "text",
    [
        "if [ $A ]; then\n  CONFIG=a.yaml\nelse\n  CONFIG=b.yaml\nfi\n",
        "CONFIG=$(ls *.yaml)\n",
        "CONFIG=`ls`\n",
        "# CONFIG=a.yaml\n",
        "CONFIG=$CONFIG\n",
    ],
)
def test_a_variable_without_one_value_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.sh").write_text(f"{text}accelerate launch --config_file $CONFIG train.py\n")
    (found,) = commands([str(tmp_path / "run.sh")], Files())
    assert found.options["config_file"] == "$CONFIG"


def test_values_that_grow_without_end(tmp_path: Path) -> None:
    text = "".join(f"A{n}='{f'$A{n + 1} ' * 90}'\n" for n in range(8)) + "A8=x\n"
    (tmp_path / "run.sh").write_text(f"{text}accelerate launch train.py $A0\n")
    assert len(list(commands([str(tmp_path / "run.sh")], Files()))) <= 1


SCRIPT = """\
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(8, 8)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize("way", WAYS)
def test_a_script_is_checked_under_the_settings_of_its_command(tmp_path: Path, way: str) -> None:
    name, text = WAYS[way]
    (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "configs").mkdir()
    settings = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
    (tmp_path / "configs" / "fsdp.yaml").write_text(settings)
    (tmp_path / "configs" / "ddp.yaml").write_text("distributed_type: MULTI_GPU\n")
    shown = invoke("check", "--isolated", "-q", "-f", "concise", ".", cwd=tmp_path).stdout
    assert "train.py:7:1: FSDP301" in shown


@pytest.mark.parametrize("folder", ["", "scripts"])
def test_the_script_of_a_command_is_the_one_beside_it(tmp_path: Path, folder: str) -> None:
    (tmp_path / ".git").mkdir()
    for place in ("", "other"):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "train.py").write_text(SCRIPT)
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "run.sh").write_text(f"{WHOLE}\n")
    (tmp_path / "configs").mkdir()
    settings = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
    (tmp_path / "configs" / "fsdp.yaml").write_text(settings)
    shown = invoke("check", "--isolated", "-q", "-f", "concise", ".", cwd=tmp_path).stdout
    assert [line.split(":")[0] for line in shown.splitlines() if "FSDP301" in line] == ["train.py"]


@pytest.mark.parametrize(
    ("command", "found"), [("accelerate launch train.py\n", False), ("", True)]
)
def test_a_command_without_the_settings_beside_a_script(
    tmp_path: Path, command: str, found: bool
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    settings = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
    (tmp_path / "fsdp.yaml").write_text(settings)
    (tmp_path / "README.md").write_text(f"```bash\n{command}```\n")
    shown = invoke("check", "--isolated", "-q", "-f", "concise", ".", cwd=tmp_path).stdout
    assert ("FSDP301" in shown) is found


@pytest.mark.parametrize("paths", [["train.py"], ["train.py", "configs"], ["."]])
def test_a_script_and_the_folder_of_its_settings(tmp_path: Path, paths: list[str]) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "run.sh").write_text(f"{WHOLE}\n")
    (tmp_path / "configs").mkdir()
    settings = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
    (tmp_path / "configs" / "fsdp.yaml").write_text(settings)
    shown = invoke("check", "--isolated", "-q", "-f", "concise", *paths, cwd=tmp_path).stdout
    assert "train.py:7:1: FSDP301" in shown
