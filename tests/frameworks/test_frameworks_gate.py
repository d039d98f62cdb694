"""Scripts that ask a framework for FSDP are analysed, whichever word they ask by; files of other kinds are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.source.prefilter import relevant, written
from tests.support.running import invoke

ASKING = {
    "transformers": "args = TrainingArguments('out', fsdp='full_shard auto_wrap')",
    "transformers, by keywords": "args = TrainingArguments(**{'fsdp': 'full_shard'})",
    "transformers, by its settings": "args = TrainingArguments('out', fsdp_config='fsdp.json')",
    "trl": "args = SFTConfig('out', fsdp=['full_shard'])",
    "accelerate": "accelerator = Accelerator(fsdp_plugin=plugin())",
    "accelerate, the class": "plugin = FullyShardedDataParallelPlugin(reshard_after_forward=True)",
    "accelerate, by the environment": "os.environ['ACCELERATE_USE_FSDP'] = 'true'",
    "lightning": "trainer = L.Trainer(strategy='fsdp')",
    "lightning, double quotes": 'trainer = L.Trainer(strategy="fsdp")',
    "lightning, the class": "trainer = L.Trainer(strategy=FSDPStrategy())",
    "lightning, FSDP2": "trainer = L.Trainer(strategy=ModelParallelStrategy())",
    "fabric": "fabric = Fabric(strategy='fsdp', devices=8)",
    "ray": "model = ray.train.torch.prepare_model(model, parallel_strategy='fsdp')",
    "torchtune": "training.shard_model(model=model, shard_conditions=conditions)",
    "torchtitan": "apply_fsdp(model, dp_mesh, param_dtype, reduce_dtype)",
    "nemo": "manager = FSDP2Manager(dp_size=8)",
    "axolotl": "cfg = DictDefault({'fsdp_version': 2})",
    "llama-factory": "run_exp(dict(stage='sft', fsdp='full_shard'))",
    "ms-swift": "sft_main(SftArguments(model='m', fsdp='fsdp2'))",
    "composer": "trainer = Trainer(model, parallelism_config={'fsdp': {}})",
}


@pytest.mark.parametrize("asked", ASKING.values(), ids=ASKING)
def test_asking_a_framework_for_fsdp_is_relevant(asked: str) -> None:
    assert relevant(asked.encode())
    assert written(asked.encode())


@pytest.mark.parametrize(
    "text",
    [
        "def is_fsdp_managed(module): ...",
        "if self.is_fsdp_enabled:\n    ...",
        "trainer = L.Trainer(strategy='ddp')",
        "class FSDPish: ...",
        "args = TrainingArguments('out', bf16=True)",
    ],
)
def test_taking_care_of_fsdp_elsewhere_is_not(text: str) -> None:
    assert not relevant(text.encode())


TRAINER = """\
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("m")
args = TrainingArguments("out", fsdp="full_shard", fsdp_config={"version": 2})
trainer = Trainer(model=model, args=args)
trainer.train()
if trainer.is_world_process_zero():
    trainer.save_model("out")
"""


def test_a_trainer_script_without_another_word_of_fsdp_is_checked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    shown = invoke("check", "-f", "concise", "train.py", cwd=tmp_path)
    assert "train.py:9:5: FSDP401" in shown.stdout


def test_a_file_without_fsdp_does_not_pass(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    shown = invoke("check", "train.py", cwd=tmp_path)
    assert shown.stdout == "No FSDP code found in 1 file; nothing was checked.\n"
    assert shown.returncode == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("passwd", "root:x:0:0:root:/root:/bin/bash\n"),
        ("run.sh", "#!/bin/bash\ntorchrun train.py --fsdp full_shard\n"),
        ("notes.txt", "x = 1\n"),
        ("values.csv", "1\n"),
    ],
)
def test_a_named_file_of_another_kind_is_not_checked(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    shown = invoke("check", name, cwd=tmp_path)
    assert shown.stderr.startswith(f"{name}: not checked: ")
    assert shown.stdout == "No Python files found; nothing was checked.\n"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("zero3.json", '{"zero_optimization": {"stage": 3}}', "DeepSpeed, which is not FSDP"),
        ("zero.yaml", "distributed_type: DEEPSPEED\n", "DeepSpeed, which is not FSDP"),
        (
            "llama.toml",
            "[parallelism]\ndata_parallel_shard_degree = -1\n",
            "the frameworks that read it (torchtitan, prime-rl) know only FSDP2",
        ),
        ("ddp.yaml", "distributed_type: MULTI_GPU\n", "nor settings that ask for FSDP"),
    ],
)
def test_settings_of_something_else_are_said_to_be_so(
    tmp_path: Path, name: str, text: str, why: str
) -> None:
    (tmp_path / name).write_text(text)
    (said,) = invoke("check", name, cwd=tmp_path).stderr.splitlines()
    assert said.startswith(f"{name}: not checked: ")
    assert said.endswith(why)


@pytest.mark.parametrize("name", ["train", "train.py.bak"])
@pytest.mark.parametrize("first", ["#!/usr/bin/env python3\n", ""])
def test_python_of_another_name_is_checked(tmp_path: Path, name: str, first: str) -> None:
    (tmp_path / name).write_text(first + TRAINER)
    assert "FSDP401" in invoke("check", "-f", "concise", name, cwd=tmp_path).stdout


SIZES = """\
import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(8, 8)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
"""
HYBRID = """\
distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
"""


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("accelerate launch --config_file fsdp.yaml --num_processes 4", True),
        ("accelerate launch --config_file fsdp.yaml --num_processes 8", False),
        ("accelerate launch --config_file fsdp.yaml --num_processes $GPUS", False),
        ("accelerate launch --config_file fsdp.yaml", False),
        (
            "accelerate launch --use_fsdp --fsdp_version 2 --num_processes 6 --parallelism_config_tp_size 4",
            True,
        ),
    ],
)
def test_sizes_beside_the_processes_of_a_command(tmp_path: Path, command: str, found: bool) -> None:
    (tmp_path / "train.py").write_text(SIZES)
    (tmp_path / "fsdp.yaml").write_text(HYBRID)
    (tmp_path / "run.sh").write_text(f"{command} train.py\n")
    shown = invoke("check", "--isolated", "-f", "concise", ".", cwd=tmp_path)
    assert ("train.py:4:15: FSDP606" in shown.stdout) is found


@pytest.mark.parametrize(
    ("commands", "found"),
    [
        ((), True),
        (("--num_processes 8",), False),
        (("--num_processes 8", "--num_processes 16"), False),
        (("--num_processes 8", ""), True),
        (("",), True),
    ],
)
def test_the_number_of_a_command_counts_more_than_the_file(
    tmp_path: Path, commands: tuple[str, ...], found: bool
) -> None:
    (tmp_path / "train.py").write_text(SIZES)
    (tmp_path / "fsdp.yaml").write_text(HYBRID + "num_processes: 6\n")
    lines = [f"accelerate launch --config_file fsdp.yaml {words} train.py" for words in commands]
    (tmp_path / "run.sh").write_text("\n".join(lines))
    shown = invoke("check", "--isolated", "-f", "concise", ".", cwd=tmp_path)
    assert ("fsdp.yaml:4:1: FSDP606" in shown.stdout) is found


def test_sizes_that_two_commands_use_in_different_numbers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SIZES)
    (tmp_path / "fsdp.yaml").write_text(HYBRID)
    command = "accelerate launch --config_file fsdp.yaml --num_processes {} train.py\n"
    (tmp_path / "run.sh").write_text(command.format(4) + command.format(8))
    assert "FSDP606" not in invoke("check", "--isolated", "-f", "concise", ".", cwd=tmp_path).stdout


ARGUMENTS = {
    "yaml": ("parse_yaml_file", "output_dir: out\nfsdp: full_shard auto_wrap\n"),
    "json": ("parse_json_file", '{"output_dir": "out", "fsdp": "full_shard auto_wrap"}'),
}


@pytest.mark.parametrize("of", ["Trainer", "Own"])
@pytest.mark.parametrize("kind", ARGUMENTS)
@pytest.mark.parametrize("target", ["", "code/train.py"])
def test_a_script_names_its_file_of_arguments(
    tmp_path: Path, of: str, kind: str, target: str
) -> None:
    parse, text = ARGUMENTS[kind]
    script = f"""\
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
class Own(Trainer):
    pass
(args,) = HfArgumentParser(TrainingArguments).{parse}("conf/args.{kind}")
trainer = {of}(model=AutoModelForCausalLM.from_pretrained("gpt2"), args=args)
trainer.train()
if args.local_rank == 0:
    trainer.save_model("out")
"""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "conf").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(script)
    (tmp_path / "conf" / f"args.{kind}").write_text(text)
    out = invoke("check", "--no-cache", str(tmp_path / target)).stdout
    assert "FSDP401" in out
    (tmp_path / "conf" / f"args.{kind}").write_text(text.replace("full_shard auto_wrap", ""))
    assert "FSDP401" not in invoke("check", "--no-cache", str(tmp_path / target)).stdout
