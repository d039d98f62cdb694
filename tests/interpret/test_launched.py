"""Scripts that say nothing of FSDP are analysed under the settings that they are launched with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.running import invoke

TRAIN = """\
import torch
from accelerate import Accelerator
from torch import nn


def main():
    accelerator = Accelerator()
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.backward(model(torch.ones(1, 8)).sum())
    optimizer.step()
    if accelerator.is_main_process:
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
"""
SAVED = "train.py:14:9: FSDP301"

TRAINER = """\
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
trainer = Trainer(model=AutoModelForCausalLM.from_pretrained("m"), args=args)
trainer.train()
if trainer.is_world_process_zero():
    trainer.save_model("out")
"""

FSDP2 = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
FSDP1 = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n"
DDP = "distributed_type: MULTI_GPU\nnum_processes: 8\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "fsdp.yaml").write_text(FSDP2)
    (tmp_path / "configs" / "ddp.yaml").write_text(DDP)
    return tmp_path


def found(folder: Path, *paths: str) -> str:
    return invoke("check", "--isolated", "-q", "-f", "concise", *paths, cwd=folder).stdout


COMMAND = "accelerate launch --config_file configs/fsdp.yaml train.py --lr 1\n"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("run.sh", COMMAND),
        (
            "job.slurm",
            "srun accelerate launch \\\n  --config_file ${HERE}/configs/fsdp.yaml \\\n  train.py\n",
        ),
        ("Makefile", "train:\n\t" + COMMAND),
        ("README.md", f"# Train\n\n```bash\n{COMMAND}```\n"),
        (".github/workflows/ci.yml", f"jobs:\n  train:\n    steps:\n      - run: {COMMAND}"),
        (
            "run.sh",
            COMMAND.replace("--config_file ", "--config_file=").replace("launch ", "launch -m "),
        ),
    ],
)
@pytest.mark.parametrize("path", [".", "train.py"])
def test_a_command_names_the_settings(project: Path, file: str, text: str, path: str) -> None:
    if file.startswith(".github") and path != ".":
        pytest.skip("commands for a single file are looked for beside it")
    (project / file).parent.mkdir(parents=True, exist_ok=True)
    (project / file).write_text(text)
    if path == "train.py":  # the settings are those that lie where the command is
        (project / "fsdp.yaml").write_text(FSDP2)
        (project / file).write_text(text.replace("configs/", ""))
    assert SAVED in found(project, path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "accelerate launch --config_file configs/ddp.yaml train.py\n",
        "accelerate launch --config_file configs/fsdp.yaml other.py\n",
        "accelerate launch --config_file configs/fsdp.yaml --fsdp_version 1 train.py\n",
        "accelerate launch --use_fsdp train.py\n",
        "accelerate launch --config_file configs/fsdp.yaml --cpu train.py\n",
        "accelerate launch --config_file $CONFIG train.py\n",
        "torchrun train.py configs/fsdp.yaml\n",
    ],
)
def test_no_command_says_so_alone(project: Path, text: str) -> None:
    (project / "run.sh").write_text(text)
    assert "train.py" not in found(project, ".")


@pytest.mark.parametrize(
    "other",
    [
        "accelerate launch --config_file configs/ddp.yaml train.py",
        "accelerate launch --config_file $CONFIG train.py",
        "accelerate launch --config_file configs/fsdp.yaml --fsdp_version 1 train.py",
    ],
)
def test_one_of_several_commands_asks_for_fsdp2(project: Path, other: str) -> None:
    (project / "run.sh").write_text(f"{other}\n{COMMAND}")
    assert SAVED in found(project, ".")


def test_a_command_names_settings_in_another_folder(project: Path) -> None:
    (project / "src").mkdir()
    (project / "train.py").rename(project / "src" / "train.py")
    (project / "run.sh").write_text(COMMAND.replace("train.py", "src/train.py"))
    assert SAVED in found(project, "src/train.py")
    (project / "run.sh").write_text(COMMAND.replace("train.py", "src/train.py") * 2)
    (project / "configs" / "fsdp.yaml").write_text(FSDP1)
    assert SAVED not in found(project, "src/train.py")


NO_SCRIPT = "No script was analysed under the settings in "


@pytest.mark.parametrize("path", [".", "train.py"])
def test_settings_that_no_command_names_are_no_reason_to_pass(project: Path, path: str) -> None:
    (project / "fsdp.yaml").write_text(FSDP2)
    (project / "full.yaml").write_text(FSDP2)
    (project / "configs" / "fsdp.yaml").unlink()
    result = invoke("check", "--isolated", path, cwd=project)
    assert "All checks passed" not in result.stdout
    said = "fsdp.yaml and 1 other settings file: no launch command names them with a script."
    assert NO_SCRIPT + said in result.stdout
    records = invoke("check", "--isolated", "-f", "json", path, cwd=project)
    assert records.stdout == "[]\n"
    assert NO_SCRIPT + said in records.stderr


def test_nothing_is_said_of_settings_where_every_script_has_its_own(project: Path) -> None:
    for name in ("a", "b", "c"):
        (project / "configs" / f"{name}.yaml").write_text(FSDP2)
    (project / "run.sh").write_text(COMMAND)
    assert NO_SCRIPT not in invoke("check", "--isolated", ".", cwd=project).stdout
    (project / "run.sh").unlink()
    (project / "train.py").write_text("import torch\n")  # it builds nothing that shards
    assert NO_SCRIPT not in invoke("check", "--isolated", ".", cwd=project).stdout


@pytest.mark.parametrize("where", ["settings", "command", "script"])
def test_activation_checkpointing_asked_for_twice(project: Path, where: str) -> None:
    script = TRAINER
    if where == "script":
        built = "args = TrainingArguments('out', gradient_checkpointing=True)\n"
        script = script.replace(
            "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n", built
        )
    (project / "sft.py").write_text(script)
    twice = FSDP2 + "  fsdp_activation_checkpointing: true\n"
    (project / "configs" / "fsdp.yaml").write_text(twice)
    (project / "args.yaml").write_text("output_dir: o\ngradient_checkpointing: true\n")
    given = {"settings": " args.yaml", "command": " --gradient_checkpointing True"}.get(where, "")
    command = COMMAND.replace("train.py --lr 1", f"sft.py{given}")
    (project / "run.sh").write_text(command)
    assert "sft.py:4:11: FSDP607" in found(project, ".")
    (project / "configs" / "fsdp.yaml").write_text(FSDP2)
    assert "FSDP607" not in found(project, ".")


@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch --use_fsdp --fsdp_version 2 --num_processes=8 train.py",
        "accelerate launch --use-fsdp --fsdp-version=2 train.py 2>&1 | tee log",
        "python -m accelerate.commands.launch --config_file configs/fsdp.yaml train.py",
        "accelerate launch --config_file configs/old.yaml --fsdp_version 2 train.py",
        "cd src && accelerate launch --config_file configs/fsdp.yaml -m train",
    ],
)
def test_options_of_the_launcher_count_more_than_its_file(project: Path, command: str) -> None:
    (project / "configs" / "old.yaml").write_text(FSDP1)
    (project / "run.sh").write_text(command + "\n")
    assert SAVED in found(project, ".")


HUNG = "sft.py:7:5: FSDP401"


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("torchrun --nproc_per_node=8 sft.py --fsdp 'full_shard auto_wrap'", ""),
        ("torchrun sft.py \\\n  --output_dir o \\\n  --fsdp full_shard", ""),
        ("python -m torch.distributed.run sft.py --fsdp=full_shard --fsdp_config a.json", "{}"),
        (
            "torchrun --master_port=<port> sft.py --output_dir <your_folder> --fsdp full_shard",
            "",
        ),
        ("torchrun sft.py a.json", '{"output_dir": "o", "fsdp": "full_shard"}'),
        (
            "torchrun sft.py --config a.json",
            '{"fsdp": "full_shard", "fsdp_config": {"version": 2}}',
        ),
    ],
)
def test_a_command_with_the_arguments_of_a_trainer(
    project: Path, command: str, settings: str
) -> None:
    (project / "sft.py").write_text(TRAINER)
    if settings:
        (project / "a.json").write_text(settings)
    (project / "run.sh").write_text(command + "\n")
    assert HUNG in found(project, ".")


@pytest.mark.parametrize(
    "command",
    [
        "torchrun sft.py --output_dir o",
        "torchrun sft.py --fsdp --lr 1",
        "torchrun sft.py --fsdp 1",
        "torchrun other.py --fsdp full_shard",
        "# pass --fsdp full_shard to sft.py",
        "torchrun sft.py b.json",
    ],
)
def test_a_command_without_the_arguments_of_a_trainer(project: Path, command: str) -> None:
    (project / "sft.py").write_text(TRAINER)
    (project / "b.json").write_text('{"output_dir": "o", "fsdp": ""}')
    (project / "run.sh").write_text(command + "\n")
    assert "sft.py" not in found(project, ".")


def test_the_version_of_a_command(project: Path) -> None:
    (project / "sft.py").write_text(TRAINER.replace("if trainer.is_world_process_zero():", "if 1:"))
    (project / "run.sh").write_text(
        "torchrun sft.py --fsdp full_shard --fsdp_config "
        '\'{"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}\'\n'
    )
    assert "sft.py:7:5: FSDP608" in found(project, ".")


def test_arguments_that_the_script_reads_from_beside_it(project: Path) -> None:
    read = "HfArgumentParser(TrainingArguments).parse_yaml_file('args.yaml')"
    (project / "sft.py").write_text(
        TRAINER.replace("HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()", read)
    )
    (project / "args.yaml").write_text("output_dir: o\nfsdp: full_shard\n")
    assert HUNG in found(project, ".")
    (project / "args.yaml").write_text("output_dir: o\nlearning_rate: 1\n")
    assert "sft.py" not in found(project, ".")


def test_settings_of_version_1(project: Path) -> None:
    (project / "configs" / "fsdp.yaml").write_text(FSDP1)
    (project / "run.sh").write_text(COMMAND)
    assert "FSDP301" not in found(project, ".")


def test_settings_beside_the_script(project: Path) -> None:
    (project / "fsdp.yaml").write_text(FSDP2)
    assert SAVED in found(project, "train.py")
    (project / "ddp.yaml").write_text(DDP)
    assert "train.py" not in found(project, "train.py")


def test_two_scripts_of_one_name_are_not_told_apart(project: Path) -> None:
    (project / "other").mkdir()
    (project / "other" / "train.py").write_text(TRAIN)
    (project / "other" / "run.sh").write_text(COMMAND.replace("train.py", "src/train.py"))
    assert "train.py" not in found(project, ".")


def test_a_trainer_whose_arguments_come_from_the_command_line(project: Path) -> None:
    (project / "sft.py").write_text(TRAINER)
    (project / "run.sh").write_text(COMMAND.replace("train.py", "sft.py"))
    assert "sft.py:7:5: FSDP401" in found(project, ".")


def test_a_plugin_in_the_script_counts_more(project: Path) -> None:
    plugin = "Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=1))"
    text = TRAIN.replace("Accelerator()", plugin)
    text = text.replace("import Accelerator", "import Accelerator, FullyShardedDataParallelPlugin")
    (project / "train.py").write_text(text)
    (project / "run.sh").write_text(COMMAND)
    assert "FSDP301" not in found(project, ".")


def test_kept_results_know_the_settings(project: Path) -> None:
    (project / "run.sh").write_text(COMMAND)
    assert SAVED in found(project, ".")
    assert SAVED in found(project, ".")
    (project / "configs" / "fsdp.yaml").write_text(FSDP1)
    assert "FSDP301" not in found(project, ".")


SHARDED = FSDP2 + "  fsdp_state_dict_type: SHARDED_STATE_DICT\n"
FULL = FSDP2 + "  fsdp_state_dict_type: FULL_STATE_DICT\n"


@pytest.mark.parametrize(
    ("settings", "reported"),
    [(FSDP2, True), (SHARDED, True), (FULL, False), (FSDP1, False)],
    ids=["the default", "sharded", "full", "version 1"],
)
def test_saving_a_model_under_the_type_of_the_launch(
    tmp_path: Path, settings: str, reported: bool
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text(
        TRAINER.replace("if trainer.is_world_process_zero():", "if 1:")
    )
    (tmp_path / "fsdp.yaml").write_text(settings)
    assert ("FSDP608" in found(tmp_path, "train.py")) is reported


def test_preparing_the_model_alone_under_the_launch(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text(
        TRAIN.replace(
            "model, optimizer = accelerator.prepare(model, optimizer)",
            "model = accelerator.prepare(model)",
        )
    )
    (tmp_path / "fsdp.yaml").write_text(FSDP2)
    assert "train.py:10:13: FSDP607" in found(tmp_path, "train.py")
    (tmp_path / "fsdp.yaml").write_text(FSDP1)
    assert "FSDP607" not in found(tmp_path, "train.py")


BLOCKS = """\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)


class Model(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.depth = 3
        self.blocks = nn.ModuleList(Block() for _ in range(3))


def main"""
WRAPPING = FSDP2 + "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"


@pytest.mark.parametrize(
    ("name", "reported"),
    [("Block", False), ("Block,Linear", False), ("Blok", True), ("Block,Head", True)],
)
def test_a_wrap_class_that_the_model_does_not_have(
    project: Path, name: str, reported: bool
) -> None:
    text = TRAIN.replace("def main", BLOCKS, 1).replace(
        "model = nn.Linear(8, 8)", "model = Model(1)"
    )
    (project / "train.py").write_text(text)
    settings = WRAPPING + f"  fsdp_transformer_layer_cls_to_wrap: {name}\n"
    (project / "configs" / "fsdp.yaml").write_text(settings)
    (project / "run.sh").write_text(COMMAND)
    assert ("FSDP607" in found(project, ".")) is reported


@pytest.mark.parametrize(
    "held", ["build()", "nn.TransformerEncoderLayer(8, 2)", "AutoModel.from_pretrained('m')"]
)
def test_a_wrap_class_in_a_model_that_is_not_known_whole(project: Path, held: str) -> None:
    text = TRAIN.replace("def main", BLOCKS, 1).replace(
        "model = nn.Linear(8, 8)", "model = Model(1)"
    )
    text = text.replace("self.depth = 3", f"self.body = {held}")
    text = text.replace("from torch import nn", "from lib import build\nfrom torch import nn")
    text = text.replace(
        "from torch import nn", "from transformers import AutoModel\nfrom torch import nn"
    )
    (project / "train.py").write_text(text)
    settings = WRAPPING + "  fsdp_transformer_layer_cls_to_wrap: Blok\n"
    (project / "configs" / "fsdp.yaml").write_text(settings)
    (project / "run.sh").write_text(COMMAND)
    assert "FSDP607" not in found(project, ".")


def test_a_script_that_contradicts_its_launch(project: Path) -> None:
    plugin = "Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=1))"
    text = TRAIN.replace("Accelerator()", plugin)
    text = text.replace("import Accelerator", "import Accelerator, FullyShardedDataParallelPlugin")
    (project / "train.py").write_text(text)
    (project / "run.sh").write_text(COMMAND)
    assert "train.py:7:19: FSDP611 `fsdp_version` is 1 here and 2 in fsdp.yaml" in found(
        project, "."
    )
    (project / "configs" / "fsdp.yaml").write_text("distributed_type: FSDP\nfsdp_config: {}\n")
    assert "FSDP611" not in found(project, ".")  # the file says no version
    (project / "configs" / "fsdp.yaml").write_text(FSDP2)
    (project / "run.sh").write_text(COMMAND.replace("train.py", "--fsdp_version 1 train.py"))
    assert "FSDP611" not in found(project, ".")


CACHE = "home/.cache/huggingface/accelerate/default_config.yaml"


@pytest.mark.parametrize(
    ("command", "is_found"),
    [
        ("", True),
        ("accelerate launch train.py", True),
        ("accelerate launch --num_processes 2 train.py", True),
        (
            "accelerate launch --config_file ~/.cache/huggingface/accelerate/default_config.yaml train.py",
            True,
        ),
        ("accelerate launch --config_file configs/ddp.yaml train.py", False),
        ("accelerate launch --multi_gpu train.py", False),
        ("accelerate launch --fsdp_version 1 train.py", False),
    ],
)
def test_the_file_in_the_cache_counts_where_it_is_named(
    project: Path, command: str, is_found: bool
) -> None:
    (project / CACHE).parent.mkdir(parents=True)
    (project / CACHE).write_text(FSDP2)
    (project / "configs" / "fsdp.yaml").unlink()
    (project / "run.sh").write_text(command + "\n")
    shown = found(project, "train.py", CACHE)
    assert (SAVED in shown) is is_found
    assert SAVED not in found(project, "train.py")
