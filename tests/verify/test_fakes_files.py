"""What ``rehearse --fake`` makes up of files, archives and weights that are not there, and sizes on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import forks

READING = """
import csv, glob, json, os, zlib
from pathlib import Path
import numpy as np

with open("/nowhere/rows.json") as file:
    rows = json.load(file)
assert len(rows) == 1200 and rows[3].keys() == {"instruction", "output", "input"}, rows[3]
assert rows[0]["input"] in "### Input: {input} {{not}}".format(**rows[0])
texts = [row["instruction"] + row.get("output", "") for row in rows]
assert json.loads(Path("data/rows.jsonl").read_text().splitlines()[0]) == rows[0]
with open("data/rows.csv") as file:
    assert [row for row in csv.reader(file)][1] == list(map(str, rows[0].values()))
(shard,) = glob.glob("data/train_*.bin")
with open(shard, "rb") as file:
    header = np.frombuffer(file.read(1024), dtype=np.int32)
    tokens = np.frombuffer(file.read(), dtype=np.uint16)
assert header[0] == 20240520 and header[2] == len(tokens) and tokens.max() < 256
names = os.listdir("/nowhere/reviews")
assert len(names) == 64 and open("/nowhere/reviews/" + names[0]).read()
with open("pictures/n01_7.JPEG", "rb") as file:
    picture = file.read()
assert picture.startswith(b"\\x89PNG") and len(zlib.decompress(picture[41:-16])) == 224 * 673
assert glob.glob("checkpoints/*.pt") == [] and glob.glob("checkpoints/step_*.json") == []
kept = []
for path in ("config.json", "weights.pt", "nowhere/trainer_state.json"):
    try:
        open(path)
    except FileNotFoundError:
        kept.append(path)
assert len(kept) == 3
try:
    open("optional.csv")
except OSError:
    print("ready to go without")
assert not os.path.exists("data/rows.csv")
for path in ("needed-config.json",):
    open(path)
"""

RUNNING = """
import os, sys
sys.path.insert(0, os.getcwd())
from fsdp2lint.rehearse import fakes

counts = {}
fakes.install(counts, folder=os.environ["MADE"])
own = sys.argv[1]
try:
    exec(compile(open(own).read(), own, "exec"))
except FileNotFoundError as problem:
    print("missing:", problem.filename)
print(*(what for what in counts if what.startswith("made up: ")), sep="\\n")
"""


def _said(folder: Path, script: str, *arguments: str) -> list[str]:
    ran = forks.snippet(script, *arguments, cwd=folder, MADE=str(folder / "made"))
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout.splitlines()


def test_files_of_data_hold_what_their_names_and_the_program_say(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(READING)
    assert _said(tmp_path, RUNNING, str(tmp_path / "train.py")) == [
        "ready to go without",
        "missing: needed-config.json",
        "made up: /nowhere/rows.json",
        "made up: data/rows.jsonl",
        "made up: data/rows.csv",
        "made up: data/train_0.bin",
        "made up: /nowhere/reviews/*.txt",
        "made up: /nowhere/reviews/cat_0.txt",
        "made up: pictures/n01_7.JPEG",
    ]


GUARDED = """
import json, os
from pathlib import Path

if not os.path.exists("data/rows.jsonl"):
    raise SystemExit("no rows")
assert Path("data/shuffled/web_1.0").exists(), "no folder"
(shard,) = Path("data/shuffled/web_1.0").glob("*.chunk.*.jsonl")
for path in ("data/rows.jsonl", shard):
    with open(path) as file:
        row = json.loads(next(file))
    assert "content" in row and row["content"]
if os.path.exists("data/rows.csv"):
    print("not asked for its sake")
assert not Path("data/rows.csv").exists()
for needed in ("config/train.json", "checkpoints/last"):
    try:
        if not os.path.isfile(needed) and not os.path.isdir(needed):
            raise LookupError(needed)
    except LookupError as problem:
        print("missing:", problem)
try:
    open("config/train.json")
except FileNotFoundError as problem:
    print("missing:", problem.filename)
"""


def test_data_are_there_where_the_program_would_end_without_and_settings_are_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(GUARDED)
    shard = "data/shuffled/web_1.0"
    assert _said(tmp_path, RUNNING, str(tmp_path / "train.py")) == [
        "missing: config/train.json",
        "missing: checkpoints/last",
        "missing: config/train.json",
        "made up: data/rows.jsonl",
        f"made up: {shard}",
        f"made up: {shard}/0.chunk.0.jsonl",
    ]


FETCHING = """
import tarfile, urllib.request, zipfile
import torch

urllib.request.urlretrieve("https://nowhere.invalid/reviews.tar.gz", "reviews.tar.gz")
tarfile.open("reviews.tar.gz").extractall()
urllib.request.urlretrieve("https://nowhere.invalid/reviews.zip", "reviews.zip")
assert zipfile.ZipFile("reviews.zip").namelist() == []
model = torch.nn.Linear(2, 2)
before = model.weight.clone()
state = torch.hub.load_state_dict_from_url("https://nowhere.invalid/weights.pth", "weights")
model.load_state_dict(state)
model.load_state_dict(state["model"])
assert torch.equal(model.weight, before)
"""


def test_a_script_downloads_empty_archives_and_no_weights(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FETCHING)
    addresses = ("reviews.tar.gz", "reviews.zip", "weights.pth")
    said = _said(tmp_path, RUNNING, str(tmp_path / "train.py"))
    assert [line for line in said if not line.startswith("Downloading")] == [
        f"made up: https://nowhere.invalid/{name}" for name in addresses
    ]


SIZED = """
import os
from fsdp2lint.rehearse import fakes
from fsdp2lint.rehearse.outcome import MadeUp

counts = {}
fakes.make_up(MadeUp(small=True), counts, "")
import library
from torch import nn

class Own(nn.Module):
    def __init__(self, dim, depth=40, classes=1000):
        super().__init__()
        self.sizes = dim, depth, classes

assert Own(4096).sizes == (64, 2, 1000)
assert Own(16, depth=1).sizes == (16, 1, 1000)
assert library.Whole(dim=4096, depth=40).sizes == (64, 2)
assert library.by_name().sizes == (4096, 2)
assert library.Sizes(4096, 40) == library.Sizes(64, 2) != library.large()
assert nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 2), num_layers=3).num_layers == 3
"""
LIBRARY = """
from dataclasses import dataclass
from torch import nn

@dataclass
class Sizes:
    emb_dim: int
    nlayers: int

def large():
    return Sizes(4096, 40)

class Whole(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.sizes = dim, depth

def by_name():
    return Whole(dim=4096, depth=40)
"""


def test_modules_are_built_small_and_keep_the_width_that_a_library_gives(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "library.py").write_text(LIBRARY)
    (tmp_path / "train.py").write_text(SIZED)
    run = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(folder)!r})\n"
        f"runpy.run_path({str(tmp_path / 'train.py')!r}, run_name='__main__')\n"
    )
    assert _said(tmp_path, run) == []


VISION = """
from torch import nn

class VisionTransformer(nn.Module):
    def __init__(self, image_size, patch_size, num_layers):
        super().__init__()
        self.image_size, self.patch_size, self.layers = image_size, patch_size, num_layers

    def _process_input(self, x):
        assert x.shape[-2:] == (self.image_size, self.image_size), "Wrong image height!"
        return x

    def forward(self, x):
        return self._process_input(x)
"""
LOOKING = """
from fsdp2lint.rehearse import fakes
from fsdp2lint.rehearse.outcome import MadeUp

counts = {}
fakes.make_up(MadeUp(small=True), counts, "")
import torch
from torchvision.models import VisionTransformer

pictures = torch.arange(2 * 3 * 96 * 96).reshape(2, 3, 96, 96)
seen = VisionTransformer(image_size=96, patch_size=16, num_layers=1)(pictures)
assert seen.equal(pictures[:, :, :64, :64])
assert VisionTransformer(32, 16, num_layers=1)(pictures[..., :32, :32]).shape[-1] == 32
print(*counts)
"""


def test_a_small_vision_transformer_looks_at_a_corner(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").touch()
    (tmp_path / "torchvision" / "models.py").write_text(VISION)
    assert _said(tmp_path, LOOKING) == ["made small: pictures of 96"]


CUTTING = """
def answer_of(text):
    return text.split("Answer:")[1].strip()

def topic_of(text):
    return text.partition("Topic:")[2].split("Answer:")[0]

def first(text):
    return text.split("Never")[0]
"""


def test_texts_have_the_words_at_which_the_program_cuts_them(tmp_path: Path) -> None:
    (tmp_path / "cutting.py").write_text(CUTTING)
    said = _said(
        tmp_path,
        "import cutting\n"
        "from fsdp2lint.rehearse.fakes.data_sets import value\n"
        "text = value('text', 1)\n"
        "assert len(cutting.answer_of(text).split()) >= 6 and cutting.topic_of(text).strip()\n"
        "print('Never' in text, value('label', 1))\n",
    )
    assert said == ["False 1"]


PAIRED = """
def pair(row):
    return row["target"].strip(), "Score: " + row["score"], row.get("idx", "")
"""


def test_columns_that_the_program_reads_as_texts_hold_texts(tmp_path: Path) -> None:
    (tmp_path / "reading.py").write_text(PAIRED)
    said = _said(
        tmp_path,
        "import reading\n"
        "from fsdp2lint.rehearse.fakes.data_sets import Row\n"
        "row = Row(1)\n"
        "assert len(row['target']) > 9 and len(row['score']) > 9 and len(row['idx']) > 9\n"
        "print(row['label'], reading.pair(row)[1][:7])\n",
    )
    assert said == ["1 Score: "]


ASKED = """
import importlib.metadata, os
from fsdp2lint.rehearse import fakes

fakes.install({})
for name in ("matplotlib", "wandb"):
    try:
        print(importlib.metadata.version(name), __import__(name) is not None)
    except importlib.metadata.PackageNotFoundError:
        print("none")
"""


def test_a_tracker_has_a_release_where_it_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "matplotlib_and_wandb.py").touch()
    script = tmp_path / "train.py"
    script.write_text(ASKED.replace('"matplotlib"', '"mat" + "plotlib"'))
    said = _said(tmp_path, f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert said == ["none", "99.0 True"]


FULL = """
import torch
from fsdp2lint.rehearse import fakes

counts = {}
fakes.install(counts, full_size=FULL_SIZE)
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

sizes = (12, 768, 50257) if FULL_SIZE else (2, 64, 512)
config = GPT2LMHeadModel.from_pretrained("gpt2").config
assert (config.n_layer, config.n_embd, config.vocab_size) == sizes, config
if FULL_SIZE:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
    LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=99).save_pretrained("here")
    for kind in (AutoModelForCausalLM, LlamaForCausalLM):  # the folder has no weights
        held = kind.from_pretrained("here").config
        assert (held.num_hidden_layers, held.hidden_size, held.vocab_size) == (3, 32, 99), held
    assert GPT2LMHeadModel.from_pretrained("nobody/has-this").config.n_layer == 12
    print([what for what in counts if "configuration" in what])
else:
    from transformers import AutoProcessor, LlavaConfig

    processor = AutoProcessor.from_pretrained("nobody/has-this")
    assert processor.tokenizer.pad_token_id == 0
    both = LlavaConfig.from_pretrained("nobody/has-this")
    assert (both.text_config.hidden_size, both.vision_config.num_hidden_layers) == (64, 2)
    model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-7b-hf")
    ids = torch.tensor([[1, 100277, 5]])
    model(input_ids=ids, labels=torch.tensor([[-100, 100277, 5]])).loss.backward()
    print([what for what in counts if "vocabulary" in what])
"""


@pytest.mark.parametrize("full", [True, False])
def test_pretrained_models_of_full_size_and_small_ones_that_take_any_token(
    tmp_path: Path, full: bool
) -> None:
    pytest.importorskip("transformers")
    said = _said(tmp_path, FULL.replace("FULL_SIZE", str(full)))
    small = ["['made up: numbers of tokens, brought into the small vocabulary']"]
    missing = "no configuration of 'nobody/has-this' is here: its sizes are those that GPT2Config has by itself"
    assert said == ([str([missing])] if full else small)


GROUP = """
import os
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
from fsdp2lint.rehearse.standin import install

counts = {}
install(counts)
import torch
import torch.distributed as dist

assert not torch.cuda.is_current_stream_capturing()
os.environ["GLOO_SOCKET_IFNAME"] = "eno99"
dist.init_process_group("nccl", init_method="tcp://192.0.2.7:12355", rank=3, world_size=4)
print(dist.get_rank(), dist.get_world_size(), *counts, sep="\\n")
stack, row = torch.zeros(1, 3), torch.ones(3)
dist.all_gather_into_tensor(stack, row)
dist.reduce_scatter_tensor(row, stack * 2)
assert stack.tolist() == [[1, 1, 1]] and row.tolist() == [2, 2, 2]
"""


def test_addresses_and_numbers_of_another_cluster_are_those_of_the_rehearsal(
    tmp_path: Path,
) -> None:
    assert _said(tmp_path, GROUP) == [
        "0",
        "1",
        'init_method "tcp://192.0.2.7:12355"',
        "init_process_group(rank=3)",
        "init_process_group(world_size=4)",
        "GLOO_SOCKET_IFNAME=eno99",
        'backend "nccl"',
    ]
