"""Choices that a program asks beside those of its sharding, and that say nothing against a finding."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, marked, named

HEAD = """\
import os

import torch
import torch.distributed as dist
from elsewhere import config
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
"""
SHARD = """

def shard(model):
    if {alone}:
        return
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


def says_what_it_marks(text: str, *further: Source, of: str = "") -> None:
    """The script gives the findings that its comments expect, and no other; only those ``of`` one rule where it is named."""
    sources = [Source("train.py", HEAD + dedent(text)), *further]
    found = [one for one in findings(sources) if one[0].code == of or not of]
    assert named(found) == marked(sources, "expect")


@pytest.mark.parametrize(
    "alone",
    ["dist.get_world_size() == 1", "int(os.environ['WORLD_SIZE']) == 1", "config.stage == 1"],
)
@pytest.mark.parametrize("choice", ["config.optim == 'adamw'", "config.optim != 'sgd'"])
def test_an_optimizer_is_chosen_by_its_name_above_the_sharding(alone: str, choice: str) -> None:
    """Neither the name of an optimizer nor the number of ranks says how parameters are held."""
    says_what_it_marks(
        SHARD.format(alone=alone)
        + f"""

def build(model):
    if {choice}:
        return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)  # expect: FSDP201
    raise ValueError(config.optim)


dist.init_process_group("gloo")
model = Model()
optimizer = build(model)
shard(model)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
optimizer.zero_grad()
""",
        of="FSDP201",
    )


def test_a_strategy_that_is_chosen_by_its_name_is_a_choice() -> None:
    """What names a way to hold parameters may exclude the sharding."""
    says_what_it_marks(
        SHARD.format(alone="not config.fsdp")
        + """

dist.init_process_group("gloo")
model = Model()
if config.strategy == "ddp" or config.stage == 1:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
shard(model)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
""",
        of="FSDP201",
    )


STEPS = [
    "optimizer.step = torch.compile(optimizer.step)",
    "optimizer.step = torch.compile(optimizer.step, mode='max-autotune')",
    "compiled(optimizer)",
]


@pytest.mark.parametrize("compiling", STEPS)
def test_a_compiled_step_of_one_of_several_optimizers_is_a_step(compiling: str) -> None:
    """`torch.compile` of what something does gives what does the same."""
    says_what_it_marks(
        SHARD.format(alone="not config.fsdp")
        + f"""

class Builder:
    def build(self, model):
        if config.optim == "sgd":
            return torch.optim.SGD(model.parameters(), lr=1e-3)  # expect: FSDP201
        return torch.optim.AdamW(model.parameters(), lr=1e-3)  # expect: FSDP201


def compiled(optimizer):
    optimizer.step = torch.compile(optimizer.step)


dist.init_process_group("gloo")
model = Model()
optimizer = Builder().build(model)
if config.compile_optimizer:
    {compiling}
shard(model)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
""",
        of="FSDP201",
    )


LIBRARY = """
from pathlib import Path

import torch.distributed.checkpoint as dcp
from transformers import AutoConfig, AutoModelForCausalLM


class Pretrained:
    def __init__(self, name):
        with torch.device("meta"):
            self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(name))

    def shard(self):
        for layer in self.model.model.layers:
            fully_shard(layer)
        {ends}
        {root}

    def buffers(self):
        for name, buffer in self.model.named_buffers():
            if "bias" in name:
                buffer.zero_()
            else:
                print(f"the rotary table {{name}}")
                rotary = self.model.model.rotary_emb
                inverse, rotary.attention_scaling = rotary.rope_init_fn(rotary.config, buffer.device)
                rotary.inv_freq.copy_(inverse)


dist.init_process_group("nccl")
trainer = Pretrained(config.name)
trainer.shard()
model = trainer.model
model.to_empty(device="cuda"){never}
if config.resume:
    dcp.load({{"model": model.state_dict()}}, checkpoint_id=config.resume)
{fresh}
trainer.buffers()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for batch in config.data:
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LOADED = "else:\n    dcp.load({'model': model.state_dict()}, checkpoint_id=config.name)"
WHOLE = "fully_shard(self.model)"


@pytest.mark.parametrize(("fresh", "said"), [("", "  # expect: FSDP251"), (LOADED, "")])
def test_buffers_that_get_values_are_no_parameters(fresh: str, said: str) -> None:
    """`inv_freq` and `named_buffers()` are written; nothing writes the parameters where the run is not resumed."""
    text = LIBRARY.format(ends="pass", root=WHOLE, never=said, fresh=fresh)
    says_what_it_marks(text, of="FSDP251")


ENDS = "if {asked}:\n            fully_shard(self.model.model.norm)\n            fully_shard(self.model.model.embed_tokens)"


@pytest.mark.parametrize(
    ("asked", "root", "expected"),
    [
        ("not self.model.config.tie_word_embeddings", "pass", True),
        ("not self.model.config.tie_word_embeddings", WHOLE, False),
        ("config.ends", "pass", True),
        ("True", "pass", False),
    ],
)
def test_embeddings_are_sharded_where_they_are_not_tied(
    asked: str, root: str, expected: bool
) -> None:
    """On the other path they are in no group, where the root is not sharded."""
    text = LIBRARY.format(ends=ENDS.format(asked=asked), root=root, never="", fresh=LOADED)
    sources = [Source("train.py", HEAD + text)]
    found = [finding for rule, finding in findings(sources) if rule.code == "FSDP206"]
    assert len(found) == expected
    assert all("get_input_embeddings" in one.message for one in found)


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        ("mesh is not None and dist.get_rank() == 0", True),
        ("mesh is not None", False),
        ("mesh is not None and dist.get_world_size() != 1 and is_main()", True),
        ("mesh is None or dist.get_world_size() == 1 and is_main()", False),
    ],
)
def test_a_mean_of_torchtitan_under_a_test_of_the_rank(guard: str, expected: bool) -> None:
    """That there are several ranks is asked before the mesh is made, and says nothing of the others."""
    mark = "  # expect: FSDP401" if expected else ""
    says_what_it_marks(
        SHARD.format(alone="not config.fsdp")
        + f"""
from torchtitan.distributed import utils


def is_main():
    return dist.get_rank() == 0


def made():
    if dist.get_world_size() == 1:
        return None
    return init_device_mesh("cuda", (dist.get_world_size(),))


dist.init_process_group("nccl")
mesh = made()
model = Model()
shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for batch in config.data:
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    if {guard}:
        print(utils.dist_mean(loss, mesh)){mark}
""",
        of="FSDP401",
    )


NORMS = """

class Clipper:
    def clip(self, parameters):
        if 1 < dist.get_world_size() <= 8:
            norm = own(parameters)
        else:
            norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        return norm


def own(parameters):
    grads = [one.grad for one in parameters if one.grad is not None]
    if len(grads) == 0:
        return torch.tensor(0.0)
    return torch.linalg.vector_norm(torch.stack([one.norm() for one in grads]))


dist.init_process_group("nccl")
model = Model()
shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for batch in config.data:
    model(batch).sum().backward()
    norm = Clipper().clip(model.parameters())
    {reading}
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "reading",
    [
        "norm = (norm.full_tensor() if isinstance(norm, torch.distributed.tensor.DTensor) else norm).item()",
        "norm = norm.full_tensor() if hasattr(norm, 'full_tensor') else norm; print(norm.item())",
        "print(norm.item())  # expect: FSDP218",
    ],
)
def test_one_of_several_norms_is_asked_whether_it_is_a_dtensor(reading: str) -> None:
    """The answer is that for the norm that it is."""
    text = SHARD.format(alone="dist.get_world_size() == 1") + NORMS.format(reading=reading)
    says_what_it_marks(text, of="FSDP218")


MISSING = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def reset(layer):
    if hasattr(layer, "reset_parameters"):
        layer.reset_parameters()


def restore(files, path, model, *, key="model"):
    state = {{key: get_model_state_dict(model)}}
    dcp.load(state, checkpoint_id=path)


dist.init_process_group("nccl")
with torch.device("meta"):
    model = Net()
fully_shard(model)
model.to_empty(device="cuda"){said}
if config.compile:
    model = torch.compile(model)
{restoring}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for batch in config.data:
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("restoring", "expected"),
    [
        ("restore(config.path, model)", False),
        ("restore(config.path, key='model', path=model)", False),
        ("restore(config.files, config.path, model)", False),
        (
            "if config.restored:\n    restore(config.path, model)\nelse:\n    model.layers.apply(reset)",
            False,
        ),
        ("print(config.path)", True),
    ],
)
def test_what_a_call_without_all_arguments_gets_is_out_of_sight(
    restoring: str, expected: bool
) -> None:
    """It raises, or a decorator gives the rest: nothing is said of what the model gets there."""
    said = "  # expect: FSDP251" if expected else ""
    says_what_it_marks(MISSING.format(restoring=restoring, said=said), of="FSDP251")


KINDS = """
from huggingface_hub import PyTorchModelHubMixin


class Net(nn.Module, PyTorchModelHubMixin):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 8)
        if config.tied:
            self.head.weight = {tied}.weight

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def converted(module):
    if isinstance(module, nn.Linear):
        return config.convert(module)
    return module


class Sharder:
    def apply(self, model):
        model = converted(model)
        if config.kind == "full" or config.kind == "none":
            for layer in model.layers:
                fully_shard(layer)
            {head}
            {root}
        else:
            raise ValueError(config.kind)
        return model


dist.init_process_group("nccl")
model = Net()
{above}
model = Sharder().apply(model)
if config.compile:
    model = torch.compile(model)
{below}
for batch in config.data:
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BUILT = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)"


@pytest.mark.parametrize("choice", ["config.decay", "config.optim in ('a', 'b')", "True"])
def test_what_else_would_raise_is_no_choice(choice: str) -> None:
    """`if kind == ...: shard; else: raise` shards in every run that goes on, whatever else is chosen."""
    above = f"optimizer = None\nif {choice}:\n    {BUILT}  # expect: FSDP201"
    text = KINDS.format(above=above, below="", head="pass", root="fully_shard(model)", tied="None")
    says_what_it_marks(text, of="FSDP201")


@pytest.mark.parametrize(("root", "expected"), [("fully_shard(model)", False), ("pass", True)])
def test_a_model_with_a_mixin_is_no_layer(root: str, expected: bool) -> None:
    """Nothing is converted but layers: the model that is sharded is the one that is trained."""
    text = KINDS.format(above="", below=BUILT, head="pass", root=root, tied="None")
    found = [
        one for rule, one in findings([Source("train.py", HEAD + text)]) if rule.code == "FSDP206"
    ]
    assert bool(found) is expected


@pytest.mark.parametrize(
    ("tied", "expected"), [("self.layers[0]", True), ("self.embeddings.tokens", False)]
)
def test_a_weight_that_no_class_holds_is_not_tied(tied: str, expected: bool) -> None:
    """`self.embeddings` is set nowhere: reading it raises, in the runs that ask for it."""
    root, head = "fully_shard(model)", "fully_shard(model.head)"
    text = KINDS.format(above="", below=BUILT, head=head, root=root, tied=tied)
    found = [
        one for rule, one in findings([Source("train.py", HEAD + text)]) if rule.code == "FSDP214"
    ]
    assert bool(found) is expected


PIPELINE = """
import torch.distributed.checkpoint as dcp
from diffusers import DiffusionPipeline, ModelMixin
from diffusers.configuration_utils import ConfigMixin
from diffusers.optimization import get_scheduler


class Transformer(ModelMixin, ConfigMixin):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Pipeline(DiffusionPipeline):
    def __init__(self, transformer, vae):
        super().__init__()
        self.register_to_config(steps=4)
        self.register_modules(vae=vae, transformer=transformer)

    @classmethod
    def create(cls, path):
        return cls(transformer=Transformer.from_pretrained(path), vae=config.vae)


class Trainer:
    def __init__(self):
        if {launched}:
            self.rank = int(os.environ["RANK"])
            self.main = self.rank == 0
        else:
            self.rank = 0
            self.main = True
        self.model = Pipeline.create(config.path).transformer
        {first}
        {second}

    def shard(self):
        if config.fsdp:
            for block in self.model.blocks:
                fully_shard(block)
            fully_shard(self.model)

    def build(self):
        if config.use_muon:
            self.optimizer = torch.optim.Muon(self.model.parameters(), lr=1e-3)  # expect: FSDP201
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)  # expect: FSDP201
        self.schedule = get_scheduler("constant", optimizer=self.optimizer)

    def step(self, x):
        self.model(x).sum().backward()
        self.optimizer.step()
        self.schedule.step()
        if self.main:
            dcp.save(self.model.state_dict(), checkpoint_id="saved")  # expect: FSDP401


dist.init_process_group("nccl")
trainer = Trainer()
for batch in config.data:
    trainer.step(batch)
"""
LAUNCHED = [
    '"RANK" in os.environ',
    'os.environ.get("WORLD_SIZE") is not None',
    'int(os.environ.get("RANK", -1)) != -1',
]


@pytest.mark.parametrize("launched", LAUNCHED)
def test_the_model_of_a_pipeline_is_followed(launched: str) -> None:
    """`register_modules` makes attributes; a run without a launcher has one rank."""
    text = PIPELINE.format(launched=launched, first="self.build()", second="self.shard()")
    sources = [Source("train.py", HEAD + text)]
    found = [one for one in findings(sources) if one[0].code in ("FSDP201", "FSDP401")]
    assert named(found) == marked(sources, "expect")


def test_the_optimizer_of_a_pipeline_is_built_below() -> None:
    """The good twin: nothing is said of the optimizers, and of the save on all ranks."""
    text = PIPELINE.format(launched=LAUNCHED[0], first="self.shard()", second="self.build()")
    text = text.replace("if self.main:", "if self.schedule:")
    codes = [rule.code for rule, _ in findings([Source("train.py", HEAD + text)])]
    assert not {"FSDP201", "FSDP401"}.intersection(codes)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("nn.Linear(8, 8)", "raises TypeError"),
        ("nn.Sequential(nn.Linear(8, 8))", "nothing is ignored"),
        ("nn.ModuleList([nn.Linear(8, 8)])", "nothing is ignored"),
        ("nn.ModuleDict({'a': nn.Linear(8, 8)})", "nothing is ignored"),
    ],
)
def test_a_module_in_place_of_ignored_parameters(module: str, said: str) -> None:
    """What torch searches in a list of modules, it finds nothing in (run with 2.13); others cannot be searched."""
    text = f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = {module}
        self.out = nn.Linear(8, 8)


dist.init_process_group("gloo")
model = Net()
fully_shard(model, ignored_params=model.inner)
"""
    found = [
        one for rule, one in findings([Source("train.py", HEAD + text)]) if rule.code == "FSDP254"
    ]
    assert [said in one.message for one in found] == [True]
