"""Modules that are sharded as one group with nothing above them (FSDP206), form by form."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, marked, named

MODEL = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 16)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.body:
            x = layer(x)
        return self.head(self.norm(x))


def build():
    net = Net()
    fully_shard(net.embed)
    for layer in net.body:
        fully_shard(layer)
    return net


dist.init_process_group("gloo")
"""
TRAINS = "model(torch.ones(2, 4, dtype=torch.long)).sum().backward()\n"

CHILDREN = (
    ("for layer in model.body.children():\n    fully_shard(layer)\n", True),
    ("for _, layer in model.body.named_children():\n    fully_shard(layer)\n", True),
    ("for part in model.children():\n    fully_shard(part)\n", False),
    ("for part in model.modules():\n    fully_shard(part)\n", False),
)


@pytest.mark.parametrize(("walk", "left"), CHILDREN)
def test_a_walk_over_children_leaves_what_is_beside_them(walk: str, left: bool) -> None:
    start = MODEL.replace('dist.init_process_group("gloo")\n', "")
    steps = "optimizer = torch.optim.AdamW(model.parameters())\n" + TRAINS + "optimizer.step()\n"
    text = start + 'dist.init_process_group("gloo")\nmodel = Net()\n' + walk + steps
    found = {one.code for one in named(list(findings([Source("train.py", text)])))}
    assert ("FSDP206" in found) is left


FORMS = {
    "a list in a name": """
        model = build()
        last = [model.norm, model.head]
        fully_shard(last)  # expect: FSDP206
        """,
    "a list on each side of a setting": """
        from settings import config

        model = build()
        if config.late:
            fully_shard([model.head, model.norm])  # expect: FSDP206
        else:
            fully_shard([model.norm, model.head])  # expect: FSDP206
        if config.offload:
            torch.cuda.empty_cache()
        """,
    "a hook that is not given": """
        from settings import config

        model = build()
        fully_shard([model.norm, model.head])  # expect: FSDP206
        if config.hook is not None:
            config.hook(model)
        """,
    "a hook instead of something else": """
        from elsewhere import finish
        from settings import config

        model = build()
        fully_shard([model.norm, model.head])  # fine: FSDP206
        if config.plain:
            finish(model)
        elif config.hook is not None:
            config.hook(model)
        """,
    "the root in a helper": """
        def finish(net):
            fully_shard(net)

        model = build()
        fully_shard([model.norm, model.head])  # fine: FSDP206
        finish(model)
        """,
    "a wrapper is the root": """
        model = build()
        fully_shard([model.norm, model.head])  # fine: FSDP206
        model = nn.Sequential(model)
        fully_shard(model)
        """,
    "the root by code that cannot be followed": """
        from elsewhere import finish

        model = build()
        fully_shard([model.norm, model.head])  # fine: FSDP206
        finish(model)
        """,
    "a list of one": """
        model = build()
        fully_shard(model.norm)
        fully_shard([model.head])  # fine: FSDP206
        """,
    "a list of a module and a part of it": """
        model = build()
        fully_shard([model, model.norm])  # fine: FSDP206
        """,
    "a list of one, of one of two models": """
        from settings import config

        model = build() if config.deep else build()
        fully_shard(model.norm)
        fully_shard([model.head])  # fine: FSDP206
        """,
    "a list of one with a name, of one of two models": """
        from settings import config

        model = build() if config.deep else build()
        fully_shard(model.norm)
        last = [model.head]
        fully_shard(last)  # fine: FSDP206
        """,
    "a list of two, of one of two models": """
        from settings import config

        model = build() if config.deep else build()
        fully_shard([model.norm, model.head])  # expect: FSDP206
        """,
    "a list without what is None": """
        model = build()
        group = [m for m in (model.norm, model.head) if m is not None]
        fully_shard(group)  # expect: FSDP206
        """,
    "a list that a function sifts": """
        from settings import config

        model = build()
        group = [m for m in (model.norm, model.head) if config.wants(m)]
        fully_shard(group)  # fine: FSDP206
        """,
    "what a test leaves of a list": """
        from settings import config

        model = build()
        fully_shard(model.norm)
        group = [m for m in (config.extra, model.head) if m is not None]
        fully_shard(group)  # fine: FSDP206
        """,
}


LIBRARY = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from settings import config


def shard(model, names):
    for module in model.modules():
        if type(module).__name__ in names:
            fully_shard(module)


dist.init_process_group("nccl")
model = AutoModelForCausalLM.from_pretrained("x")
"""
WALKS = {
    "blocks by the names of their classes": ('shard(model, ("GPTNeoXLayer", "GPT2Block"))', True),
    "blocks by their class": (
        "for m in model.modules():\n    if isinstance(m, LlamaDecoderLayer):\n        fully_shard(m)",
        True,
    ),
    "blocks by their class, when something else holds too": (
        "for _, m in model.named_modules():\n"
        "    if isinstance(m, LlamaDecoderLayer) and config.deep:\n        fully_shard(m)",
        True,
    ),
    "all layers, perhaps the embeddings": ('shard(model, ("GPTNeoXLayer", "Embedding"))', False),
    "classes of the settings": ("shard(model, config.classes)", False),
    "the root below": ('shard(model, ("GPTNeoXLayer",))\nfully_shard(model)', False),
}


@pytest.mark.parametrize(("text", "left"), WALKS.values(), ids=WALKS)
def test_a_walk_over_the_blocks_of_a_library_leaves_the_embeddings(text: str, left: bool) -> None:
    trained = "optimizer = torch.optim.AdamW(model.parameters())\nmodel(x=1).loss.backward()\n"
    source = Source("train.py", LIBRARY + text + "\n" + trained)
    found = {one.code for one in named(list(findings([source])))}
    assert ("FSDP206" in found) is left


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
def test_a_group_that_would_be_its_own_root(text: str) -> None:
    sources = [Source("train.py", MODEL + dedent(text) + TRAINS)]
    found = {one for one in named(list(findings(sources))) if one.code == "FSDP206"}
    assert found == marked(sources, "expect")


BY_WAY = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--context", action="store_true")
args = parser.parse_args()
model = Net()
model.context = args.context
if args.context:
    for layer in model.body:
        fully_shard(layer)
    fully_shard(module=model)
else:
    for layer in model.body:
        fully_shard(layer)
REST
"""
RESTS = (
    ("", True),
    ("    fully_shard(model)\n", False),
    ("fully_shard(model) if not args.context else None\n", False),
    ("    finish(model)\n", False),
)


@pytest.mark.parametrize(("rest", "left"), RESTS)
def test_a_root_of_another_way_is_no_root_of_this_one(rest: str, left: bool) -> None:
    steps = "optimizer = torch.optim.AdamW(model.parameters())\n" + TRAINS + "optimizer.step()\n"
    text = MODEL.replace("import torch\n", "import torch\nfrom elsewhere import finish\n", 1)
    text += BY_WAY.replace("REST\n", rest) + steps
    found = {one.code for one in named(list(findings([Source("train.py", text)])))}
    assert ("FSDP206" in found) is left


KINDS = """\
model = Net()
for module in model.children():
    if isinstance(module, nn.ModuleList):
        for layer in module:
            fully_shard(layer)
    else:
        fully_shard(model)
"""


def test_what_a_walk_finds_is_no_way_of_the_run() -> None:
    steps = "optimizer = torch.optim.AdamW(model.parameters())\n" + TRAINS + "optimizer.step()\n"
    found = {one.code for one in named(list(findings([Source("train.py", MODEL + KINDS + steps)])))}
    assert "FSDP206" not in found


FROZEN = (("model.embed.requires_grad_(False)", True), ("model.requires_grad_(False)", False))


@pytest.mark.parametrize(("frozen", "left"), FROZEN)
def test_one_frozen_layer_does_not_hide_the_others(frozen: str, left: bool) -> None:
    text = MODEL + f"model = Net()\n{frozen}\nfor layer in model.body:\n    fully_shard(layer)\n"
    text += "optimizer = torch.optim.AdamW(model.parameters())\n" + TRAINS + "optimizer.step()\n"
    found = {one.code for one in named(list(findings([Source("train.py", text)])))}
    assert ("FSDP206" in found) is left
