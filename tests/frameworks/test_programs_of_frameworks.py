"""One whole program for each framework: it asks for FSDP by the framework's own word alone, and is followed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.running import invoke

PROGRAMS = {
    "Trainer": (
        """\
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2")
trainer = Trainer(model=model, args=TrainingArguments("out", fsdp="full_shard"))
trainer.train()
if trainer.is_world_process_zero():
    trainer.save_model("out")
""",
        "fsdp=",
        "FSDP401",
    ),
    "TRL": (
        """\
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

args = SFTConfig("out", fsdp="full_shard auto_wrap")
trainer = SFTTrainer(model="gpt2", args=args, train_dataset=load_dataset("imdb", split="train"))
trainer.train()
if trainer.is_world_process_zero():
    trainer.save_model("final")
""",
        "fsdp=",
        "FSDP401",
    ),
    "accelerate, its plugin": (
        """\
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin

accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
model = torch.nn.Linear(8, 8)
model = accelerator.prepare(model)
""",
        "FullyShardedDataParallelPlugin",
        "FSDP607",
    ),
    "Lightning, by name": (
        """\
import lightning.pytorch as pl
import torch


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


trainer = pl.Trainer(strategy="fsdp", devices=2)
trainer.fit(Model(), [torch.randn(4, 8)])
if trainer.is_global_zero:
    trainer.save_checkpoint("model.ckpt")
""",
        'strategy="fsdp"',
        "FSDP401",
    ),
    "Lightning, FSDP2": (
        """\
import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


trainer = pl.Trainer(strategy=ModelParallelStrategy(), devices=2)
trainer.fit(Model(), [torch.randn(4, 8)])
if trainer.is_global_zero:
    trainer.save_checkpoint("model.ckpt")
""",
        "ModelParallelStrategy",
        "FSDP609",
    ),
    "Fabric": (
        """\
import lightning as L
import torch

fabric = L.Fabric(strategy="fsdp", devices=2)
fabric.launch()
model = torch.nn.Linear(8, 8)
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
if fabric.global_rank == 0:
    fabric.save("model.ckpt", {"model": model})
""",
        'strategy="fsdp"',
        "FSDP401",
    ),
    "Ray Train": (
        """\
import ray.train.torch
import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer


def worker():
    model = ray.train.torch.prepare_model(torch.nn.Linear(8, 8), parallel_strategy="fsdp")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    if ray.train.get_context().get_world_rank() == 0:
        torch.save(model.state_dict(), "model.pt")


TorchTrainer(worker, scaling_config=ScalingConfig(num_workers=2, use_gpu=True)).fit()
""",
        'parallel_strategy="fsdp"',
        "FSDP401",
    ),
    "torchtune": (
        """\
import torch
from torchtune import training
from torchtune.models.llama3 import llama3_8b

model = llama3_8b()
optimizer = torch.optim.AdamW(model.parameters())
training.shard_model(model=model, shard_conditions=[lambda name, module: True])
model(torch.zeros(1, 8, dtype=torch.long)).sum().backward()
optimizer.step()
""",
        "shard_model",
        "FSDP201",
    ),
    "torchtitan": (
        """\
import torch
from torchtitan.models.llama3.infra.parallelize import apply_fsdp
from torch.distributed.device_mesh import init_device_mesh

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
apply_fsdp(model, init_device_mesh("cuda", (2,)), torch.bfloat16, torch.float32, False)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
""",
        "apply_fsdp",
        "FSDP201",
    ),
    "NeMo AutoModel": (
        """\
import torch
from nemo_automodel.components.distributed.fsdp2 import FSDP2Manager

manager = FSDP2Manager(dp_size=8)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
model = manager.parallelize(model)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
""",
        "FSDP2Manager",
        "FSDP201",
    ),
}
"""A program, the word by which it asks, and what is found in it."""

SETTINGS = {
    "axolotl": (
        """\
from axolotl.train import train
from axolotl.utils.dict import DictDefault

cfg = DictDefault({"base_model": "gpt2", "fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}})
model, tokenizer, trainer = train(cfg=cfg, dataset_meta=None)
""",
        "fsdp_",
    ),
    "LLaMA-Factory": (
        """\
from llamafactory.train.tuner import run_exp

run_exp(dict(stage="sft", model_name_or_path="gpt2", fsdp="full_shard auto_wrap"))
""",
        "fsdp=",
    ),
    "ms-swift": (
        """\
from swift.llm import TrainArguments, sft_main

sft_main(TrainArguments(model="gpt2", dataset=["x"], fsdp="fsdp2"))
""",
        "fsdp=",
    ),
}
"""Programs that hand settings to a framework, which trains by code of its own: nothing in them can be followed."""

_WORD = re.compile(r"fsdp|fully_?shard|ModelParallelStrategy|shard_model|zero_?3", re.IGNORECASE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_followed_for_one_word(tmp_path: Path, name: str) -> None:
    text, word, code = PROGRAMS[name]
    asking = [line for line in text.splitlines() if _WORD.search(line)]
    assert all(word in line or line.startswith(("from ", "import ")) for line in asking)
    (tmp_path / "train.py").write_text(text)
    shown = invoke("check", "--isolated", "-f", "concise", "train.py", cwd=tmp_path)
    assert f" {code} " in shown.stdout
    assert shown.returncode == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_the_word_nothing_is_said_of_sharding(tmp_path: Path, name: str) -> None:
    text, word, _ = PROGRAMS[name]
    (tmp_path / "train.py").write_text(_WORD.sub("other", text.replace(word, "other")))
    shown = invoke("check", "--isolated", "-f", "concise", "train.py", cwd=tmp_path)
    assert shown.stdout == "No FSDP code found in 1 file; nothing was checked.\n"


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_for_a_framework_are_seen(tmp_path: Path, name: str) -> None:
    text, word = SETTINGS[name]
    assert word in text
    (tmp_path / "train.py").write_text(text)
    shown = invoke("check", "--isolated", "-f", "concise", "train.py", cwd=tmp_path)
    assert "FSDP in 1 of 1 file" in shown.stdout
