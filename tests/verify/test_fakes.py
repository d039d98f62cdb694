"""What ``rehearse --fake`` makes up: packages that are missing, data, pretrained weights."""

from __future__ import annotations

import abc
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsdp2lint.rehearse.fakes import images
from fsdp2lint.rehearse.fakes.data_sets import Dataset, load_dataset, load_from_disk
from fsdp2lint.rehearse.fakes.nothing import Hollow, Nothing
from fsdp2lint.rehearse.fakes.texts import Tokenizer
from fsdp2lint.rehearse.launch import Run
from fsdp2lint.rehearse.outcome import MadeUp, Request
from fsdp2lint.rehearse.standin.afterwards import after
from tests.support import forks

from .scenes import ROOT, forking

SCRIPT = ROOT / "fixtures" / "verify" / "lacking.py"

PRETRAINED = """
from fsdp2lint.rehearse import fakes

counts = {}
fakes.install(counts)
from transformers import (
    AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer,
    BertForSequenceClassification, T5ForConditionalGeneration,
)

tokenizer = AutoTokenizer.from_pretrained("meta-llama/Llama-2-7b-hf")
batch = tokenizer(["a text", "another one"], return_tensors="pt", padding=True)
for name in ("gpt2", "t5-base", "bert-base-cased", "Qwen/Qwen3-0.6B"):
    assert len(AutoTokenizer.from_pretrained(name)("some words")["input_ids"]) > 8, name
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-7b-hf", torch_dtype="auto")
assert model.config.model_type == "llama", model.config
loss = model(**batch, labels=batch["input_ids"]).loss
loss.backward()
asked = {"use_cache": False, "num_labels": 7, "hidden_size": 4096}
for cls in (AutoModelForSequenceClassification, BertForSequenceClassification):
    other = cls.from_pretrained("bert-base-cased", **asked)
    assert other.config.num_labels == 7 and other.config.hidden_size == 64, other.config
    assert other(input_ids=batch["input_ids"], labels=None).logits.shape == (2, 7)
config, rest = AutoConfig.from_pretrained("gpt2", use_cache=False, other=1, return_unused_kwargs=True)
assert config.use_cache is False and rest == {"other": 1}, rest
assert sum(p.numel() for p in model.parameters()) < 1_000_000
t5 = T5ForConditionalGeneration.from_pretrained("t5-base")
assert (t5.config.d_model, t5.config.decoder_start_token_id) == (64, 0)
print(*counts)
"""


@pytest.mark.ranks
def test_a_script_that_lacks_everything_trains(tmp_path: Path) -> None:
    (tmp_path / "lacking.py").write_text(SCRIPT.read_text())
    run = _rehearsed(tmp_path, "lacking.py", patches=("hidden:hide",))
    assert [(rank.how, rank.error) for rank in run.ranks] == [("ended", ""), ("ended", "")]
    assert [len(rank.steps) for rank in run.ranks] == [3, 3]
    made_up = {what for what in run.ranks[0].replaced if what.startswith("made up: ")}
    missing = ("wandb", "datasets", "tiktoken", "torchvision", "data/train.bin")
    assert made_up == {f"made up: {name}" for name in missing}


def test_pictures_go_through_the_functions_of_the_program_that_take_tensors() -> None:
    make = images.transforms
    steps = [lambda x: x.convert("RGB"), make.Resize(8), make.ToTensor(), lambda x: (x * 9).int()]
    data = images.datasets.FakeData(
        image_size=(1, 64), num_classes=5, transform=make.Compose(steps)
    )
    picture, label = data[7]
    assert picture.shape == (1, 1, 64)
    assert picture.unique().tolist() == list(range(9))
    assert label == 2
    assert images.datasets.CIFAR10(transform=make.Compose([make.Resize(8)]))[0][0].shape == (
        3,
        8,
        8,
    )


PROGRAM = {
    "src/minepkg/__init__.py": "",
    "src/minepkg/parts.py": """
from foolib.deep import Thing, other

class Mine(Thing): ...
class Other(other): ...
assert float(other + 3) / 1e9 == 0
assert f"{other:.1f}" == "0.0"

def late():
    import barlib
    return barlib.measure(3)
""",
    "scripts/train.py": """
import contextlib
import importlib.util

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

try:
    import optional_one
except ImportError:
    optional_one = None
assert optional_one is None
with contextlib.suppress(ImportError):
    import optional_two
    raise AssertionError("it is not there")
assert importlib.util.find_spec("optional_three") is None
try:
    import hydra
except ModuleNotFoundError:
    hydra = None
try:
    import wanted
except ImportError as problem:
    raise SystemExit("pip install wanted") from problem
from minepkg import parts

parts.late()
dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.Linear(4, 4).cuda()
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 4).cuda()).sum().backward()
optimizer.step()
dist.destroy_process_group()
""",
}


def _rehearsed(folder: Path, target: str, **more: Any) -> Run:
    (folder / "scratch").mkdir()
    (folder / "cwd").mkdir()
    request = Request(
        str(folder / target),
        str(folder / "scratch"),
        timeout=600.0,
        folder=str(folder / "cwd"),
        made_up=MadeUp(missing=True),
        **more,
    )
    with forking() as ranks:
        return ranks.launch(request, lambda _: None)


@pytest.mark.ranks
def test_a_missing_package_is_made_up_unless_the_program_goes_on_without_it(tmp_path: Path) -> None:
    for name, text in PROGRAM.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run = _rehearsed(tmp_path, "scripts/train.py")
    assert [(rank.how, rank.error) for rank in run.ranks] == [("ended", ""), ("ended", "")]
    made_up = {what for what in run.ranks[0].replaced if what.startswith("made up: ")}
    assert made_up == {"made up: foolib", "made up: barlib", "made up: wanted"}
    assert "put on the path: src/ with minepkg" in run.ranks[0].replaced


@pytest.mark.ranks
def test_a_package_that_gives_the_model_is_not_made_up(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import vit_pytorch\n")
    run = _rehearsed(tmp_path, "train.py")
    assert {rank.error for rank in run.ranks} == {
        "ModuleNotFoundError: No module named 'vit_pytorch'"
    }


SIZED = """
import dataclasses
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration


@dataclass
class Model:
    dim: int = 4096
    n_layers: int = 32
    n_heads: int = 32
    vocabulary: int = 100
    width_of_heads: int = dataclasses.field(init=False)

    def __post_init__(self):
        self.width_of_heads = self.dim // self.n_heads


@dataclass(frozen=True, kw_only=True)
class Training:
    depth: int = 3000
    batch_size: int = 8


large = Model(dim=8192)
assert (large.dim, large.n_layers, large.n_heads, large.width_of_heads) == (64, 2, 4, 16), large
assert large.vocabulary == 100
assert Model(32, n_layers=1) == Model(dim=32, n_layers=1, n_heads=4)
assert Model(32).dim == 32
assert Training().depth == 3000
dist.init_process_group("nccl")
torch.manual_seed(0)
config = LlamaConfig(vocab_size=300, hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, intermediate_size=28672)
model = AutoModelForCausalLM.from_config(config).cuda()
assert (len(model.model.layers), model.config.hidden_size, model.config.vocab_size) == (2, 64, 300)
both = LlavaForConditionalGeneration(LlavaConfig())
assert sum(p.numel() for p in both.parameters()) < 20_000_000
whole = AutoModelForCausalLM.from_pretrained("whole")
assert (whole.config.hidden_size, len(whole.model.layers)) == (96, 3)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.arange(16).reshape(2, 8).cuda()
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.ranks
def test_models_are_built_small_unless_weights_are_loaded(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    (tmp_path / "sized.py").write_text(SIZED)
    whole = LlamaConfig(vocab_size=300, hidden_size=96, num_hidden_layers=3, num_attention_heads=2)
    LlamaForCausalLM(whole).save_pretrained(tmp_path / "whole")
    command = [sys.executable, "-m", "fsdp2lint", "rehearse", "--small", "-f", "json", "sized.py"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    small = {what for what in json.loads(done.stdout)["replaced"] if what.startswith("made small")}
    assert small == {"made small: Model", "made small: LlamaConfig", "made small: LlavaConfig"}


LACKING_TRANSFORMERS = """
from copy import deepcopy

from fsdp2lint.rehearse import fakes

counts = {}
fakes.install(counts)
import torch
from transformers import AdamW, AutoModelForCausalLM, LlamaConfig, T5Tokenizer
from transformers.masking_utils import create_causal_mask

tokenizer = T5Tokenizer.from_pretrained("t5-base")
made = tokenizer.batch_encode_plus(["one two"], max_length=8, pad_to_max_length=True, truncation=True, return_tensors="pt")
assert made["input_ids"].shape == made["attention_mask"].shape == (1, 8)
config = LlamaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
torch.manual_seed(0)
flash = AutoModelForCausalLM.from_config(deepcopy(config), attn_implementation="flash_attention_2")
torch.manual_seed(0)
plain = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
ids = torch.arange(16).reshape(2, 8)
loss = flash(input_ids=ids, labels=ids).loss
torch.testing.assert_close(loss, plain(input_ids=ids, labels=ids).loss)
mask = torch.ones(2, 8, dtype=torch.long)
assert create_causal_mask(flash.config, torch.zeros(2, 4, 32), mask, past_key_values=None) is None  # for kernels count places themselves
mask[0, 6:] = 0
made, wanted = (model(input_ids=ids, attention_mask=mask).logits for model in (flash, plain))
torch.testing.assert_close(made[mask.bool()], wanted[mask.bool()])
places = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
packed = flash(input_ids=ids[:1], position_ids=places).logits
torch.testing.assert_close(packed[:, 3:], plain(input_ids=ids[:1, 3:]).logits)
optimizer = AdamW(flash.parameters(), lr=1e-3, correct_bias=True, no_deprecation_warning=True)
loss.backward()
optimizer.step()
print(*counts, sep="\\n")
"""

ATTENDING = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

mesh = init_device_mesh("cuda", (2,))
torch.manual_seed(0)
whole = [torch.randn(2, 4, 6, 8, requires_grad=True) for _ in range(3)]
wanted = F.scaled_dot_product_attention(*whole, is_causal=True)
wanted.square().sum().backward()
for placement in (Replicate(), Shard(0), Shard(1)):
    parts = [distribute_tensor(t.detach(), mesh, [placement]).requires_grad_() for t in whole]
    made = F.scaled_dot_product_attention(*parts, is_causal=True)
    assert made.placements == (placement,), made.placements
    torch.testing.assert_close(made.full_tensor(), wanted)
    query, key, value = parts
    made = F.scaled_dot_product_attention(query=query, key=key, value=value, is_causal=True)
    made.square().sum().backward()
    for part, tensor in zip(parts, whole):
        torch.testing.assert_close(part.grad.full_tensor(), tensor.grad)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.ranks
def test_names_that_newer_transformers_lack(tmp_path: Path) -> None:
    done = forks.snippet(LACKING_TRANSFORMERS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    said = [line for line in done.stdout.splitlines() if "t5-base" not in line]
    assert said == [
        "made up: batch_encode_plus of a tokenizer",
        'made up: attn_implementation="flash_attention_2"',
        "made up: transformers.AdamW",
    ]


@pytest.mark.ranks
def test_causal_attention_over_tensors_cut_by_batches_or_heads(tmp_path: Path) -> None:
    (tmp_path / "attending.py").write_text(ATTENDING)
    run = _rehearsed(tmp_path, "attending.py")
    assert [(rank.how, rank.error) for rank in run.ranks] == [("ended", ""), ("ended", "")]


def test_a_class_that_does_nothing_has_all_attributes_and_goes_with_abstract_ones() -> None:
    client: Any = Hollow("store").Client
    assert isinstance(client.errors, Nothing)
    assert isinstance(client.from_url("s3://x"), Nothing)

    class Own(client, abc.ABC):  # type: ignore[misc]
        errors = client.errors

    assert isinstance(Own().anything, Nothing)


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
    done = forks.snippet(PRETRAINED, cwd=ROOT)
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


def test_parts_and_other_data_sets_hold_other_rows() -> None:
    """A program that evaluates on its training data computes something else."""
    texts = [
        one[0]["text"]
        for one in (
            load_dataset("c4", split="train"),
            load_dataset("c4", split="validation"),
            load_dataset("imdb", split="train"),
            load_from_disk("/data/c4/train"),
            load_from_disk("/data/c4/validation"),
            load_from_disk("/data/c4")["test"],
        )
    ]
    assert len(set(texts)) == len(texts)
    assert load_dataset("c4")["train"][0]["text"] == texts[0]
    assert load_from_disk("/another/folder/train")[0]["text"] == texts[3]


def test_rows_keep_the_columns_that_a_script_leaves() -> None:
    tokenizer = Tokenizer()
    parts = load_dataset("glue", "mrpc")
    made = parts.map(
        lambda some: tokenizer(some["sentence1"], some["sentence2"], truncation=True),
        batched=True,
        remove_columns=["idx", "sentence1", "sentence2"],
    ).rename_column("label", "labels")
    row = made["train"][0]
    assert list(row) == ["input_ids", "attention_mask", "labels"]
    batch = tokenizer.pad([made["train"][n] for n in range(4)], return_tensors="pt")
    assert batch["labels"].tolist() == [0, 1, 0, 1]
    assert batch["input_ids"].shape == batch["attention_mask"].shape
    made["train"].set_format("torch", columns=["labels"])
    assert list(made["train"][1]) == ["labels"]
    assert made["train"][1]["labels"].item() == 1


def test_a_program_that_removes_columns_keeps_those_that_it_made() -> None:
    data = load_dataset("json", data_files="data.json")["train"]
    cut = data.map(lambda row: {"input_ids": [len(row["output"])]}).remove_columns("output")
    assert cut.column_names == ["input_ids"]
    said = data.map(lambda row: {"text": f"Q: {row['question']}"}).remove_columns(["question"])
    assert said[0]["text"].startswith("Q: ")
    assert load_dataset("imdb")["train"].remove_columns("label")[0]["text"]


def test_columns_say_what_they_hold() -> None:
    data = load_dataset("glue", "mnli")["train"]
    assert data.features["label"].names == ["0", "1"]
    assert data.features["label"].num_classes > max(data["label"])
    assert list(data.features) == data.column_names
    assert data.features["premise"].dtype == "string"


def test_rows_that_come_with_their_tokens_have_numbers() -> None:
    row = load_dataset("tokenized", split="train")[3]
    assert len(row["input_ids"]) == len(row["attention_mask"]) == len(row["labels"]) > 8
    assert row["labels"] == row["input_ids"]
    assert all(isinstance(number, int) for number in row["input_ids"])


def test_data_that_an_installed_package_cannot_download_are_made_up() -> None:
    if importlib.util.find_spec("datasets") is None:
        pytest.skip("datasets is not installed")
    done = forks.snippet(OFFLINE, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "own rows: 2",
        "made up: load_dataset('nobody/has-this')",
        "rows: 1280",
    ]


OFFLINE = """
from fsdp2lint.rehearse import fakes
counts = {}
fakes.install(counts)
import datasets
own = datasets.concatenate_datasets([datasets.Dataset.from_dict({"text": ["a"]}) for _ in range(2)])
print("own rows:", len(own))
made = datasets.load_dataset("nobody/has-this", split=["train", "test"])
print(*counts, sep="\\n")
print("rows:", len(datasets.concatenate_datasets(made)))
"""


# -- downloads, Slurm, pictures --------------------------------------------------------------------------------------

TORCHVISION = """
import os
from types import ModuleType
import numpy as np
import torch
import sys

class VisionDataset(torch.utils.data.Dataset):
    def __init__(self, root=None, transforms=None, transform=None, target_transform=None):
        self.root, self.transform, self.target_transform = root, transform, target_transform

    def __len__(self):
        return len(self.data)

class DatasetFolder(VisionDataset):
    def __init__(self, root, loader, transform=None, target_transform=None):
        super().__init__(root, transform=transform, target_transform=target_transform)
        self.classes = sorted(os.listdir(root))
        raise AssertionError("no test has a folder")

    def __getitem__(self, index):
        path, target = self.samples[index]
        return self.loader(path), target

    def __len__(self):
        return len(self.samples)

class ImageFolder(DatasetFolder):
    def __init__(self, root, transform=None, target_transform=None):
        super().__init__(root, None, transform, target_transform)
        self.imgs = self.samples

class CIFAR10(VisionDataset):
    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        super().__init__(root, transform=transform, target_transform=target_transform)
        raise RuntimeError("Dataset not found or corrupted. You can use download=True to download it")

    def __getitem__(self, index):
        picture, target = self.data[index], self.targets[index]
        return self.transform(picture), target

class CIFAR100(CIFAR10):
    pass

class MNIST(VisionDataset):
    def __init__(self, root, train=True, transform=None, target_transform=None, download=False):
        super().__init__(root, transform=transform, target_transform=target_transform)
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")

    def __getitem__(self, index):
        return self.transform(self.data[index].numpy()), int(self.targets[index])

    @property
    def class_to_idx(self):
        return {}

class SVHN(VisionDataset): ...
class STL10(VisionDataset): ...

datasets = ModuleType("torchvision.datasets")
vars(datasets).update({k: v for k, v in globals().items() if isinstance(v, type)})
sys.modules["torchvision.datasets"] = datasets
"""
"""The classes of torchvision (0.28) as far as they are built on each other, without any file to read."""

PICTURES = """
import sys
sys.path.insert(0, sys.argv[1])
from fsdp2lint.rehearse import fakes

counts = {}
fakes.install(counts)
from torchvision import datasets

same = lambda picture: picture
cifar = datasets.CIFAR10("data", download=True, transform=same)
assert (len(cifar), cifar[3][0].shape, cifar[3][1]) == (256, (32, 32, 3), 3)
assert cifar[49_999][1] == cifar[49_999 % 256][1]
assert {datasets.CIFAR100("data", transform=same)[i][1] for i in range(256)} == set(range(10))
assert (datasets.MNIST("data", transform=same)[11][0].shape, cifar.class_to_idx["1"]) == ((28, 28), 1)
assert {target for _, target in datasets.ImageFolder("nowhere").samples} == {0, 1}
try:
    datasets.CIFAR10()
except TypeError:
    print(*sorted(counts), sep="; ")
"""


def _said(script: str, *args: str, **environment: str) -> str:
    ran = forks.snippet(script, *args, cwd=ROOT, **environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_data_sets_of_torchvision_get_pictures_where_their_files_are_missing(
    tmp_path: Path,
) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(TORCHVISION)
    said = _said(PICTURES, str(tmp_path))
    kinds = ("CIFAR10", "ImageFolder", "MNIST")
    assert said == "; ".join(f"made up: the files of {kind}" for kind in kinds)


DOWNLOADS = """
import urllib.error
import urllib.request
import requests
from fsdp2lint.rehearse import fakes

counts = {}
fakes.install(counts)
text = "https://nowhere.invalid/data/input.txt"
with urllib.request.urlopen(urllib.request.Request(text)) as answer:
    first = answer.read().decode()
urllib.request.urlretrieve(text, "kept.txt")
assert open("kept.txt").read() == first == requests.get(text, timeout=5).text
assert sum(map(len, requests.get(text, stream=True).iter_content(1000))) == len(first)
for read, problem in ((urllib.request.urlopen, urllib.error.URLError), (requests.get, requests.ConnectionError)):
    try:
        read("https://nowhere.invalid/weights.bin")
    except problem:
        print(counts[f"made up: {text}"])
"""


def test_a_text_that_a_script_downloads_is_made_up(tmp_path: Path) -> None:
    assert _said(f"import os\nos.chdir({str(tmp_path)!r})\n{DOWNLOADS}") == "4\n4"


SLURM = """
import os
from fsdp2lint.rehearse import fakes

counts = {}
fakes.install(counts)
exec(compile(open(os.environ["ASKING"]).read(), os.environ["ASKING"], "exec"))
"""
ASKING = """
rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ.get("SLURM_NTASKS", 1))
print(rank, world, os.getenv("SLURM_NNODES"), "SLURM_JOB_ID" in os.environ, os.getenv("SLURM_JOB_NODELIST"))
"""


def test_slurm_answers_the_program_and_no_library(tmp_path: Path) -> None:
    own = tmp_path / "train.py"
    own.write_text(ASKING)
    ranks = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_PORT": "29500"}
    assert _said(SLURM, ASKING=str(own), **ranks) == "3 4 1 True localhost"
    keys = tmp_path / "keys.py"
    keys.write_text('print(os.environ["HUGGINGFACE_TOKEN"], os.environ.get("HUGGINGFACE_TOKEN"))')
    assert _said(SLURM, ASKING=str(keys)) == "made-up None"
    package = tmp_path / "site-packages" / "library.py"
    package.parent.mkdir()
    package.write_text('print(os.environ.get("SLURM_PROCID"))')
    assert _said(SLURM, ASKING=str(package), **ranks) == "None"
    assert _said(SLURM, ASKING=str(own), SLURM_PROCID="7", **ranks).startswith("7 ")


def test_what_waits_for_an_import_is_not_lost_when_a_package_is_only_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked_first.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    called: list[str] = []
    for name in ("one", "other"):
        after("asked_first", lambda name=name: called.append(name))  # type: ignore[misc]
    for _ in range(2):
        assert importlib.util.find_spec("asked_first")
    importlib.import_module("asked_first")
    assert sorted(called) == ["one", "other"]


DIFFUSERS = """
import torch

class ModelMixin(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, name, **how):
        raise OSError(name)

class SchedulerMixin:
    @classmethod
    def from_pretrained(cls, name, **how):
        raise OSError(name)

class AutoencoderKL(ModelMixin):
    def __init__(self, block_out_channels=(64,), **sizes):
        super().__init__()
        self.inner = torch.nn.Linear(block_out_channels[0], len(block_out_channels))

class DDPMScheduler(SchedulerMixin):
    steps = 1000
"""

DIFFUSING = """
from fsdp2lint.rehearse import fakes

counts = {}
fakes.install(counts)
import torch
from diffusers import AutoencoderKL, DDPMScheduler

first, other = (AutoencoderKL.from_pretrained("sd", torch_dtype=torch.bfloat16) for _ in range(2))
assert first.inner.weight.shape == (4, 32) and not first.training
assert first.inner.weight.dtype == torch.bfloat16 and torch.equal(first.inner.weight, other.inner.weight)
assert DDPMScheduler.from_pretrained("sd", subfolder="scheduler").steps == 1000
assert counts["made up: AutoencoderKL.from_pretrained('sd')"] == 2
"""


def test_models_and_schedulers_of_diffusers_are_small_ones(tmp_path: Path) -> None:
    (tmp_path / "diffusers.py").write_text(DIFFUSERS)
    places = os.pathsep.join((str(tmp_path), str(ROOT)))
    ran = forks.snippet(DIFFUSING, cwd=ROOT, PYTHONPATH=places)
    assert ran.returncode == 0, ran.stderr[-3000:]


REPORTING = {
    "site-packages/library.py": """
import importlib.util

def available():
    return [name for name in ("wandb", "mlflow", "aim") if importlib.util.find_spec(name)]
""",
    "train.py": """
import sys
sys.path.insert(0, "site-packages")
from fsdp2lint.rehearse import fakes
counts = {}
fakes.install(counts)
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"))
""",
    "own.py": """
import library
report_to = "mlflow"
print(library.available())
""",
    "settings.yaml": "tracker: aim\n",
}


@pytest.mark.parametrize(
    ("words", "there"), [([], ["mlflow"]), (["--config=settings.yaml"], ["mlflow", "aim"])]
)
def test_a_tracker_is_there_where_the_program_or_its_settings_name_it(
    tmp_path: Path, words: list[str], there: list[str]
) -> None:
    (tmp_path / "site-packages").mkdir()
    for name, text in REPORTING.items():
        (tmp_path / name).write_text(text)
    ran = forks.snippet(REPORTING["train.py"], "own.py", *words, cwd=tmp_path)
    assert ran.stdout.splitlines() == [str(there)]


def test_a_name_says_the_kind_of_a_model() -> None:
    import transformers

    from fsdp2lint.rehearse.fakes.pretrained import _kind

    said = {
        "EleutherAI/pythia-2.8b": "gpt_neox",
        "meta-llama/Llama-3.1-8B": "llama",
        "Qwen/Qwen2.5-7B-Instruct": "qwen2",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "qwen2",
        "google/flan-t5-large": "t5",
        "facebook/opt-6.7b": "opt",
        "microsoft/Phi-3-mini-4k-instruct": "phi3",
        "distilbert-base-uncased": "distilbert",
        "lmsys/vicuna-7b": "llama",
        "/models/my_own": "llama",
    }
    kinds = transformers.CONFIG_MAPPING.keys()
    assert {name: _kind(name.lower(), kinds) for name in said} == said


SAVED = """
from fsdp2lint.rehearse import fakes
fakes.install({})
import torch
from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from transformers import AutoModelForCausalLM

parts, whole = load_dataset("nobody/has-it"), load_dataset("nobody/has-it", split="train")
assert isinstance(parts, DatasetDict) and isinstance(whole, Dataset)
assert not isinstance(whole, DatasetDict) and len(whole) == 1024 and len(parts["test"]) == 256
assert parts.map(lambda row: {"n": 1}).remove_columns("text").column_names["train"] == ["n"]
for saved in (load_from_disk("nowhere/train"), load_from_disk("nowhere")["train"]):
    assert isinstance(saved, Dataset) and saved[0]["text"] and saved.column_names == ["text"]
seen = whole.with_transform(lambda rows: {"upper": [one.upper() for one in rows["text"]]})
assert seen[0] == {"upper": whole[0]["text"].upper()}
assert Dataset.from_csv("https://nowhere.invalid/rows.csv")[0]["headline"]

model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-7b-hf", dtype=torch.bfloat16)
assert next(model.parameters()).dtype == torch.bfloat16
assert model.model.rotary_emb.inv_freq.dtype == torch.float32, "as in a model that was loaded"
"""


def test_data_of_an_installed_package_are_of_its_classes(tmp_path: Path) -> None:
    ran = forks.snippet(SAVED, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
