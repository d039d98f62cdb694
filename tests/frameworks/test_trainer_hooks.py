"""Methods and callbacks that a Trainer runs get the model that it shards, and the rules speak of what they do with it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.running import invoke

HEADER = """\
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

"""
ARGUMENTS = 'TrainingArguments("out", fsdp="full_shard", fsdp_config={"fsdp_version": 2})'
START = """
model = AutoModelForCausalLM.from_pretrained("gpt2")
trainer = {made}
trainer.train()
"""
MINE = f"Mine(model=model, args={ARGUMENTS})"
CALLED = f"Trainer(model, {ARGUMENTS}, callbacks=[Mine()])"

Hooks = dict[str, tuple[str, str, str]]
"""A class, what builds its trainer, and what is found in it, by a line that says what it shows."""

BAD: Hooks = {
    "the loss by a direct forward": (
        """
        class Mine(Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
                return model.forward(**inputs).loss  # FSDP203
        """,
        MINE,
        "FSDP203",
    ),
    "the wrapper's module in a helper of training_step": (
        """
        class Mine(Trainer):
            def training_step(self, model, inputs, num_items_in_batch=None):
                self.watch(model)
                return super().training_step(model, inputs, num_items_in_batch)

            def watch(self, wrapped):
                print(wrapped.module.config)  # FSDP229
        """,
        MINE,
        "FSDP229",
    ),
    "a loss that the default step calls": (
        """
        class Base(Trainer):
            def training_step(self, *args, **kwargs):
                return super().training_step(*args, **kwargs)

        class Mine(Base):
            def compute_loss(self, model, inputs, **kwargs):
                return model.module(**inputs).loss  # FSDP229
        """,
        MINE,
        "FSDP229",
    ),
    "rank 0 saves in a checkpoint": (
        """
        class Mine(Trainer):
            def _save_checkpoint(self, model, trial):
                super()._save_checkpoint(model, trial)
                if self.args.should_save:
                    torch.save(model.state_dict(), "model.pt")  # FSDP301
        """,
        MINE,
        "FSDP301",
    ),
    "a mixin gathers on the first rank only": (
        """
        class Saving:
            def save_model(self, output_dir=None, _internal_call=False):
                super().save_model(output_dir, _internal_call)
                if self.is_world_process_zero():
                    torch.save(self.accelerator.get_state_dict(self.model), "model.pt")  # FSDP401

        class Mine(Saving, Trainer):
            pass
        """,
        MINE,
        "FSDP401",
    ),
    "a callback on every save": (
        """
        class Mine(TrainerCallback):
            def on_save(self, args, state, control, model=None, **kwargs):
                if state.is_world_process_zero:
                    torch.save(model.state_dict(), "model.pt")  # FSDP301
        """,
        CALLED,
        "FSDP301",
    ),
    "the class of a callback, and its keywords": (
        """
        class Mine(TrainerCallback):
            def on_train_end(self, args, state, control, **kwargs):
                torch.save(kwargs["model"].state_dict(), f"{args.local_rank}.pt")  # FSDP301
        """,
        CALLED.replace("Mine()", "Mine"),
        "FSDP301",
    ),
    "a function that saves by the trainer": (
        """
        class Mine(Trainer):
            pass

        def save(trainer, folder):
            state = trainer.model.state_dict()
            if trainer.args.should_save:
                trainer._save(folder, state_dict={k: v.cpu() for k, v in state.items()})  # FSDP301
        """,
        f"{MINE}\ntrainer.train()\nsave(trainer, 'out')",
        "FSDP301",
    ),
    "an evaluation that the settings ask for": (
        """
        class Mine(Trainer):
            def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
                return model.forward(**inputs).loss, None, None  # FSDP203
        """,
        MINE.replace('"out"', '"out", eval_strategy="steps"'),
        "FSDP203",
    ),
}

GOOD: dict[str, tuple[str, str]] = {
    "the model is called, and everyone gathers": (
        """
        class Mine(Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
                outputs = model(**inputs)
                return (outputs.loss, outputs) if return_outputs else outputs.loss

            def _save_checkpoint(self, model, trial):
                super()._save_checkpoint(model, trial)
                state = self.accelerator.get_state_dict(model)
                if self.args.should_save:
                    torch.save(state, "model.pt")
        """,
        MINE,
    ),
    "the wrapper is asked for first": (
        """
        class Mine(Trainer):
            def compute_loss(self, model, inputs, **kwargs):
                inner = model.module if hasattr(model, "module") else model
                if isinstance(model, nn.parallel.DistributedDataParallel):
                    print(model.module)
                print(getattr(model, "module", model).config, inner)
                return super().compute_loss(model, inputs, **kwargs)
        """,
        MINE,
    ),
    "another way without FSDP": (
        """
        class Mine(Trainer):
            def compute_loss(self, model, inputs, **kwargs):
                if not self.is_fsdp_enabled:
                    return model.module.forward(**inputs).loss
                return model(**inputs).loss
        """,
        MINE,
    ),
    "a training without FSDP": (
        """
        class Mine(Trainer):
            def compute_loss(self, model, inputs, **kwargs):
                torch.save(model.module.state_dict(), "model.pt")
                return model.module(**inputs).loss
        """,
        MINE.replace('fsdp="full_shard", fsdp_config={"fsdp_version": 2}', ""),
    ),
    "FSDP1 has the wrapper": (
        """
        class Mine(Trainer):
            def compute_loss(self, model, inputs, **kwargs):
                return model.module(**inputs).loss
        """,
        MINE.replace('"fsdp_version": 2', '"fsdp_version": 1'),
    ),
    "it never saves": (
        """
        class Mine(TrainerCallback):
            def on_save(self, args, state, control, model=None, **kwargs):
                torch.save(model.state_dict(), "model.pt")
        """,
        CALLED.replace('"out"', '"out", save_strategy="no"'),
    ),
    "a callback of another trainer": (
        """
        class Mine(TrainerCallback):
            def on_save(self, args, state, control, model=None, **kwargs):
                torch.save(model.state_dict(), "model.pt")
        """,
        CALLED.replace("callbacks=[Mine()]", "callbacks=[]"),
    ),
    "shards in a checkpoint of the default kind": (
        """
        class Mine(Trainer):
            def save_model(self, output_dir=None, _internal_call=False):
                super().save_model(output_dir, _internal_call)
        """,
        MINE.replace(
            '"fsdp_version": 2', '"fsdp_version": 2, "state_dict_type": "SHARDED_STATE_DICT"'
        ),
    ),
}


def findings(folder: Path, *paths: str) -> list[str]:
    """What `check` prints of a folder, without the sentences."""
    shown = invoke("check", "--isolated", "-q", "-f", "concise", *paths, cwd=folder).stdout
    return [" ".join(line.split()[:2]) for line in shown.splitlines() if ": FSDP" in line]


def line_of(text: str, code: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.endswith(f"# {code}"))


@pytest.mark.parametrize("name", BAD)
def test_a_hook_is_given_the_sharded_model(tmp_path: Path, name: str) -> None:
    hooks, made, code = BAD[name]
    text = HEADER + dedent(hooks) + START.format(made=made)
    (tmp_path / "train.py").write_text(text)
    (found,) = findings(tmp_path, "train.py")
    assert found.startswith(f"train.py:{line_of(text, code)}:")
    assert found.endswith(code)


@pytest.mark.parametrize("name", BAD)
def test_a_hook_in_another_file_under_the_settings_of_a_launch(tmp_path: Path, name: str) -> None:
    hooks, made, code = BAD[name]
    text = HEADER + dedent(hooks)
    (tmp_path / "hooks.py").write_text(text)
    arguments = "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]"
    build = "".join(
        f"from {line}\n" for line in ("transformers import HfArgumentParser", "hooks import *")
    )
    start = START.format(
        made=made.replace(ARGUMENTS, "args").replace(
            ARGUMENTS.replace('"out"', '"out", eval_strategy="steps"'), "args"
        )
    )
    (tmp_path / "train.py").write_text(HEADER + build + f"args = {arguments}\n" + start)
    (tmp_path / "fsdp.yaml").write_text("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n")
    (tmp_path / "run.sh").write_text("accelerate launch --config_file fsdp.yaml train.py\n")
    (found,) = findings(tmp_path, ".")
    assert found.startswith(f"hooks.py:{line_of(text, code)}:")
    assert found.endswith(code)


@pytest.mark.parametrize("name", GOOD)
def test_a_hook_that_is_right_is_quiet(tmp_path: Path, name: str) -> None:
    hooks, made = GOOD[name]
    (tmp_path / "train.py").write_text(HEADER + dedent(hooks) + START.format(made=made))
    of_hooks = [one for one in findings(tmp_path, "train.py") if not one.endswith("FSDP601")]
    assert of_hooks == []


REAL = """\
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        words = torch.arange(8) + index
        return {"input_ids": words, "labels": words}


class Show(TrainerCallback):
    def on_save(self, args, state, control, model=None, **kwargs):
        print("saved:", type(next(iter(model.state_dict().values()))).__name__)


class Mine(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        print("wrapper:", hasattr(model, "module"))
        return super().compute_loss(model, inputs)


config = LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
)
args = TrainingArguments(
    "out",
    fsdp="full_shard auto_wrap",
    fsdp_config={"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
    per_device_train_batch_size=2,
    max_steps=1,
    report_to=[],
    bf16=False,
    gradient_checkpointing=False,
)
trainer = Mine(LlamaForCausalLM(config), args, train_dataset=Rows(), callbacks=[Show()])
trainer.train()
try:
    trainer._save("whole")
except RuntimeError as problem:
    print("_save:", problem)
"""


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("transformers") is None, reason="the Trainer runs itself")
def test_the_trainer_hands_out_the_sharded_model(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REAL)
    done = invoke("rehearse", "train.py", cwd=tmp_path)
    said = done.stdout + done.stderr
    assert "wrapper: False" in said
    assert "saved: DTensor" in said
    assert "_save: Attempted to access the data pointer on an invalid python storage" in said
