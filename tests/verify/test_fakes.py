"""What ``rehearse --fake`` makes up: packages that are missing, data, pretrained weights."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp2lint.rehearse.fakes.data_sets import Dataset, load_dataset
from fsdp2lint.rehearse.fakes.nothing import Nothing
from fsdp2lint.rehearse.fakes.texts import Tokenizer
from fsdp2lint.rehearse.outcome import Request

from .scenes import ROOT, forking

SCRIPT = ROOT / "fixtures" / "verify" / "lacking.py"
MISSING = ("wandb", "datasets", "tiktoken", "torchvision", "tensorboard")

PRETRAINED = """
from fsdp2lint.rehearse import fakes

counts = {}
fakes.install(counts)
from transformers import AutoModelForCausalLM, AutoTokenizer, T5ForConditionalGeneration

tokenizer = AutoTokenizer.from_pretrained("meta-llama/Llama-2-7b-hf")
batch = tokenizer(["a text", "another one"], return_tensors="pt", padding=True)
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-7b-hf", torch_dtype="auto")
assert model.config.model_type == "llama", model.config
loss = model(**batch, labels=batch["input_ids"]).loss
loss.backward()
assert sum(p.numel() for p in model.parameters()) < 1_000_000
t5 = T5ForConditionalGeneration.from_pretrained("t5-base")
assert t5.config.d_model == 64
print(*counts)
"""


@pytest.mark.ranks
def test_a_script_that_lacks_everything_trains(tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) is not None for name in MISSING):
        pytest.skip("one of the packages is installed")
    (tmp_path / "cwd").mkdir()
    request = Request(
        str(SCRIPT), str(tmp_path), timeout=120.0, folder=str(tmp_path / "cwd"), fake=True
    )
    with forking() as ranks:
        run = ranks.launch(request, lambda _: None)
    assert [(rank.how, rank.error) for rank in run.ranks] == [("ended", ""), ("ended", "")]
    assert [len(rank.steps) for rank in run.ranks] == [3, 3]
    made_up = {what for what in run.ranks[0].replaced if what.startswith("made up: ")}
    assert made_up == {f"made up: {n}" for n in (*MISSING[:4], "data/train.bin")}


def test_what_does_nothing_unpacks_into_as_many_as_are_wanted() -> None:
    figure, (left, right) = Nothing()
    assert isinstance(figure, Nothing)
    assert isinstance(left, Nothing)
    assert isinstance(right, Nothing)
    assert list(Nothing()) == []
    assert [*Nothing()] == []


@pytest.mark.ranks
def test_without_a_network_models_and_tokenizers_are_small_ones(tmp_path: Path) -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    done = subprocess.run(
        [sys.executable, "-c", PRETRAINED], capture_output=True, text=True, cwd=ROOT, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "T5ForConditionalGeneration.from_pretrained" in done.stdout


def test_rows_have_every_column_and_are_mapped_in_batches() -> None:
    tokenizer = Tokenizer()
    rows = load_dataset("any", split="train")
    assert isinstance(rows, Dataset)
    assert isinstance(rows[0]["instruction"], str)
    made = rows.map(
        lambda some: tokenizer(
            some["document"], truncation=True, max_length=8, padding="max_length"
        ),
        batched=True,
        remove_columns=rows.column_names,
    )
    assert made.column_names == ["input_ids", "attention_mask"]
    assert {len(row["input_ids"]) for row in made} == {8}
    assert len(made) == len(rows)
    made.set_format("torch")
    assert made[0]["input_ids"].shape == (8,)
    assert tokenizer.decode(tokenizer.encode("any text")) == "any text"
