"""What gives a model on the meta device values, and what only stands beside it (FSDP251), form by form."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, named

HEAD = """\
import os
import re

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

import settings
from elsewhere import finish, library


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


class Trainer:
    def __init__(self, config):
        self.config = config
        self.folder = library.Folder(config.folder)
        self.data = library.open(config.data)
        self.states = {}
        with torch.device("meta"):
            self.model = Net()
        fully_shard(self.model)
        self.model.to_empty(device="cuda")
        self.prepare()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def fit(self):
        for batch in self.data:
            self.model(batch).sum().backward()
            self.optimizer.step()

"""
WRAPPED = """\
class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        return self.net(x)


dist.init_process_group("nccl")
with torch.device("meta"):
    model = Wrapper()
fully_shard(model.net)
model.to_empty(device="cuda")
INIT
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
"""
TAIL = """\


dist.init_process_group("nccl")
Trainer(settings.load()).fit()
"""

NO_VALUES = {
    "nothing": "pass",
    "settings and a folder beside the model": """
        self.folder.create(self.config.name)
        library.describe(self.config)
        """,
    "names of parameters": """
        for name, parameter in self.model.named_parameters():
            if re.search("norm", name) and parameter.is_floating_point():
                library.describe(name)
        """,
    "keys of the state": """
        for key, value in self.model.state_dict().items():
            library.describe(re.sub("[0-9]+", "*", key))
        """,
    "a dictionary of what is saved": """
        self.states.update({"model": self.model})
        """,
    "the data of a buffer": """
        for module in self.model.modules():
            for name, buffer in module.named_buffers():
                buffer.data = buffer.data.to(torch.bfloat16)
        """,
    "an error that may be raised": """
        if not self.config.name:
            raise ValueError(f"no name for {self.model}")
        """,
    "a flag of the model": """
        self.model.training_started = True
        """,
    "a hook that is not given, and a load that is not asked for": """
        if self.config.parallel or self.config.finish is not None:
            if self.config.finish is not None:
                self.config.finish(self.model)
        if self.config.resume:
            state = {"model": self.model.state_dict()}
            dcp.load(state, checkpoint_id=self.config.resume)
            self.model.load_state_dict(state["model"])
        """,
}
VALUES = {
    "a method that initialises": """
        for module in self.model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        """,
    "a function that cannot be followed": """
        finish(self.model)
        """,
    "one that gets the trainer": """
        finish(self)
        """,
    "a parameter by its place in the state": """
        for key, value in self.model.state_dict().items():
            library.fill(key, value)
        """,
    "a list of parameters": """
        self.states.update({"all": list(self.model.parameters())})
        for parameter in self.states["all"]:
            nn.init.zeros_(parameter)
        """,
    "the data of a parameter": """
        for parameter in self.model.parameters():
            parameter.data = torch.zeros_like(parameter)
        """,
    "each module's own parameters, in a walk that is applied": """
        def fill(module):
            for part in module.modules():
                for parameter in part.parameters(recurse=False):
                    nn.init.zeros_(parameter)

        self.model.apply(fill)
        """,
    "a hook in place of a library": """
        if self.config.plain:
            finish(self.model)
        elif self.config.finish is not None:
            self.config.finish(self.model)
        """,
}


def said(body: str) -> set[int]:
    """The lines at which a trainer that does this beside its model is said to train on garbage."""
    lines = dedent(body).strip().splitlines()
    method = "".join(
        f"{line}\n" for line in ["    def prepare(self):", *(f"        {one}" for one in lines)]
    )
    found = named(list(findings([Source("train.py", HEAD + method + TAIL)])))
    return {one.line for one in found if one.code == "FSDP251"}


@pytest.mark.parametrize("body", NO_VALUES.values(), ids=list(NO_VALUES))
def test_what_stands_beside_a_model_gives_it_no_values(body: str) -> None:
    assert said(body) == {HEAD[: HEAD.index("to_empty")].count("\n") + 1}


@pytest.mark.parametrize("body", VALUES.values(), ids=list(VALUES))
def test_what_reaches_the_parameters_may_give_them_values(body: str) -> None:
    assert not said(body)


@pytest.mark.parametrize(
    ("init", "found"), [("", True), ("model.net.layer.reset_parameters()", False)]
)
def test_a_model_that_only_holds_the_sharded_one_computes_by_it(init: str, found: bool) -> None:
    classes = HEAD[: HEAD.index("class Trainer")]
    source = Source("train.py", classes + WRAPPED.replace("INIT", init))
    assert ("FSDP251" in {one.code for one in named(list(findings([source])))}) is found


def codes(text: str) -> set[str]:
    """The codes of what is found in a script."""
    return {one.code for one in named(list(findings([Source("train.py", text)])))}


AROUND = (
    ("torch.autograd.set_detect_anomaly(True)", True),
    ("CommDebugMode()", True),
    ("context_parallel(mesh, buffers=[batch], buffer_seq_dims=[1])", True),
    ("sdpa_kernel(SDPBackend.MATH)", True),
    ("FakeTensorMode()", False),
    ("library.region()", False),
)
CONTEXTS = """\
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (4,))
with torch.device("meta"):
    model = Net()
fully_shard(model)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batch = torch.ones(2, 8)
with AROUND:
    loss = model(batch).sum()
loss.backward()
optimizer.step()
"""


@pytest.mark.parametrize(("context", "ordinary"), AROUND)
def test_a_context_that_leaves_tensors_as_they_are_changes_nothing(
    context: str, ordinary: bool
) -> None:
    text = HEAD + CONTEXTS.replace("AROUND", context)
    assert ("FSDP251" in codes(text)) is ordinary


TABLES = """\
class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.table = torch.ones(8)

    def forward(self, x):
        self.table = self.table.to(x.device)
        return self.layer(x) + self.table


dist.init_process_group("nccl")
with torch.device("meta"):
    model = Table()
fully_shard(model)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
"""


def test_what_the_forward_assigns_comes_too_late() -> None:
    assert "FSDP251" in codes(HEAD + TABLES)


CHOICES = (
    ("if config.resume:\n    model.load_state_dict(library.load())\nif config.pretrained is not None:\n"
     "    finish(model)\n", True),
    ("if config.resume:\n    model.load_state_dict(library.load())\nelse:\n    finish(model)\n", False),
    ('if config.start == "old":\n    model.load_state_dict(library.load())\nelif config.start == "new":\n'
     "    finish(model)\n", False),
    ("if config.resume:\n    model.load_state_dict(library.load())\nif not config.resume:\n"
     "    finish(model)\n", False),
    ("model.mesh = mesh\nmodel.noise = torch.Generator()\nmodel.noise.manual_seed(3)\n", True),
)  # fmt: skip
STARTS = """\
from settings import config
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (4,))
with torch.device("meta"):
    model = Net()
fully_shard(model)
MEMORY
CHOICE
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize(("choice", "left"), CHOICES)
def test_where_neither_of_two_flags_is_set_nothing_gives_values(choice: str, left: bool) -> None:
    script = HEAD + STARTS.replace("CHOICE", choice)
    assert ("FSDP251" in codes(script.replace("MEMORY", 'model.to_empty(device="cuda")'))) is left
    loads = choice.replace("library.load())", "library.load(), assign=True)")
    bare = HEAD + STARTS.replace("CHOICE", loads).replace("MEMORY\n", "")
    assert ("FSDP215" in codes(bare)) is left


def test_one_layer_without_memory_is_enough() -> None:
    script = STARTS.replace("Net()", "nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))")
    bare = script.replace(
        "MEMORY\n", 'model[0].to_empty(device="cuda")\nmodel[0].reset_parameters()\n'
    )
    assert "FSDP215" in codes(HEAD + bare.replace("CHOICE\n", ""))


BUILT = """\
from settings import config
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict


def build():
    if config.kind == "net":
        make = Net
    else:
        OTHERWISE
    with torch.device("meta"):
        model = make()
    MEMORY
    return fully_shard(model)


dist.init_process_group("nccl")
model = build()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
set_model_state_dict(model, library.load(), options=StateDictOptions(full_state_dict=True))
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("otherwise", "memory", "found"),
    [
        ("raise ValueError(config.kind)", 'model.to_empty(device="cuda")', False),
        ("make = Net", 'if make is Net:\n        model.to_empty(device="cuda")', False),
        ("make = Net", 'if config.kind == "net":\n        model.to_empty(device="cuda")', True),
        ("raise ValueError(config.kind)", "pass", True),
    ],
)
def test_a_test_behind_which_the_program_ends_is_no_choice(
    otherwise: str, memory: str, found: bool
) -> None:
    script = BUILT.replace("OTHERWISE", otherwise).replace("MEMORY", memory)
    assert ("FSDP252" in codes(HEAD + script)) is found


def test_what_holds_no_parameters_itself_gets_no_memory_alone() -> None:
    memory = 'model.to_empty(device="cuda", recurse=False)\nmodel.reset_parameters()'
    script = HEAD.replace(
        "    def forward", "    def reset_parameters(self):\n        pass\n\n    def forward", 1
    ) + STARTS.replace("CHOICE\n", "")
    assert "FSDP251" not in codes(script.replace("MEMORY", memory))
    assert "FSDP251" in codes(script.replace("MEMORY", memory.replace(", recurse=False", "")))


TWO_WAYS = """

def resume(model, folder):
    newest = library.newest(folder)
    if newest is None:
        return
    VALUES


dist.init_process_group("nccl")
with torch.device("meta"):
    model = Net()
fully_shard(model)
MEMORY
if settings.resume:
    resume(model, settings.folder)
model(torch.ones(2, 8)).sum().backward()
torch.optim.AdamW(model.parameters(), lr=1e-3).step()
"""


@pytest.mark.parametrize(
    ("code", "memory", "values"),
    [
        ("FSDP251", 'model.to_empty(device="cuda")', "model.layer.reset_parameters()"),
        ("FSDP215", "pass", 'model.to_empty(device="cuda").layer.reset_parameters()'),
    ],
)
def test_all_paths_on_which_a_model_is_left_are_named(code: str, memory: str, values: str) -> None:
    script = HEAD + TWO_WAYS.replace("MEMORY", memory).replace("VALUES", values)
    found = findings([Source("train.py", script)])
    (message,) = (one.message for rule, one in found if rule.code == code)
    assert "when `newest is None`, and when `not settings.resume`" in message
