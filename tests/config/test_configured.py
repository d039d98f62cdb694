"""Trainers whose parts come from their settings: what `check` follows of them, and which mistakes it finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.running import invoke

PARTS = """
from dataclasses import dataclass, field, replace
from typing import ClassVar


class Part:
    @dataclass(kw_only=True, slots=True)
    class Settings:
        makes: ClassVar[type | None] = None

        def make(self, **others):
            if self.makes is None:
                raise NotImplementedError(type(self).__name__)
            return self.makes(replace(self), **others)

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        if "Settings" in cls.__dict__:
            own = cls.__dict__["Settings"]
            if "__slots__" not in own.__dict__:
                raise TypeError("settings have slots")
            own.makes = cls
"""

NETS = """
from dataclasses import dataclass

import torch
from parts import Part
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Layer(Part, nn.Module):
    @dataclass(kw_only=True, slots=True)
    class Settings(Part.Settings):
        width: int = 8

    def __init__(self, settings: Settings):
        super().__init__()
        self.lin = nn.Linear(settings.width, settings.width)

    def forward(self, x):
        return self.lin(x)


class Net(Part, nn.Module):
    @dataclass(kw_only=True, slots=True)
    class Settings(Part.Settings):
        layers: list[Layer.Settings]

    def __init__(self, settings: Settings):
        super().__init__()
        self.layers = nn.ModuleDict()
        for i, one in enumerate(settings.layers):
            self.layers[str(i)] = one.make()

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x


def split(net: Net, dtype):
    policy = MixedPrecisionPolicy(param_dtype=dtype)
    options = {"mp_policy": policy}
    for layer in net.layers.values():
        fully_shard(layer, **options)
    fully_shard(net, **options)
    return net
"""

TRAINER = """
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from nets import Net
from parts import Part

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Spec:
    net: Net.Settings
    split: Callable


class Optimizers(torch.optim.Optimizer, Part):
    @dataclass(kw_only=True, slots=True)
    class Settings(Part.Settings):
        name: str = "AdamW"

    def __init__(self, settings: Settings, *, parts: list[torch.nn.Module]):
        kinds = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW}
        every = defaultdict(list)
        self.inner = []
        for part in parts:
            every[settings.name].append({"params": list(part.parameters())})
        for name, groups in every.items():
            self.inner.append(kinds[name](groups))
        torch.optim.Optimizer.__init__(self, [p for o in self.inner for p in o.params], {})

    def step(self):
        for one in self.inner:
            one.step()


class Trainer(Part):
    @dataclass(kw_only=True, slots=True)
    class Settings(Part.Settings):
        spec: Spec | None = None
        optim: Optimizers.Settings = field(default_factory=Optimizers.Settings)
        steps: int = 10
    dtype: str = "bfloat16"

    def __init__(self, settings: Settings):
        assert settings.spec is not None
        self.settings = settings
        net = settings.spec.net.make()
        net = settings.spec.split(net, DTYPES[settings.dtype])
        self.parts = [net]
        self.optim = settings.optim.make(parts=self.parts)

    def train(self):
        for _ in range(self.settings.steps):
            self.parts[0](torch.randn(2, 8)).sum().backward()
            self.optim.step()
            self.optim.zero_grad()
"""

SETTINGS = """
from nets import Layer, Net, split
from trainer import Spec, Trainer


def small() -> Trainer.Settings:
    net = Net.Settings(layers=[Layer.Settings(), Layer.Settings()])
    return Trainer.Settings(spec=Spec(net=net, split=split))


def large() -> Trainer.Settings:
    made = small()
    made.steps = 100
    return made
"""

MAIN = """
import importlib
import sys

import torch
import tyro
from trainer import Trainer


def chosen(name: str, which: str):
    module = None
    for package in ("zoo", "attic"):
        try:
            module = importlib.import_module(f"{package}.{name}.settings")
            break
        except ImportError:
            continue
    make = getattr(module, which, None)
    return make()


def main():
    torch.distributed.init_process_group("gloo")
    first = chosen(*sys.argv[1:3])
    settings = tyro.cli(type(first), default=first)
    trainer: Trainer = settings.make()
    trainer.train()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
"""

FILES = {
    "parts.py": PARTS,
    "nets.py": NETS,
    "trainer.py": TRAINER,
    "zoo/mlp/settings.py": SETTINGS,
    "main.py": MAIN,
}


def laid(folder: Path, **changed: tuple[str, str]) -> Path:
    """The project, with a replacement in some of its files."""
    (folder / "pyproject.toml").write_text('[project]\nname = "p"\nversion = "1"\n')
    for name, text in FILES.items():
        old, new = changed.get(Path(name).stem, ("", ""))
        assert old in text
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new, 1) if old else text)
    return folder


def programs(folder: Path) -> dict[str, Any]:
    said = invoke("check", "-n", "-q", "--exit-zero", "-f", "coverage", cwd=folder).stdout
    return {one["filename"]: one for one in json.loads(said)["programs"]}


def codes(folder: Path) -> set[str]:
    said = invoke("check", "-n", "-q", "--exit-zero", "-f", "json", cwd=folder).stdout
    return {one["code"] for one in json.loads(said) if one["severity"] == "error"}


def test_the_program_is_followed_from_its_settings_to_the_last_step(tmp_path: Path) -> None:
    main = programs(laid(tmp_path))["main.py"]
    assert [(seen["resolved"], seen["linked"]) for seen in main["shards"]] == [(True, True)] * 2
    # the optimizer that the settings make, and those that it holds
    assert [(seen["resolved"], seen["linked"]) for seen in main["steps"]] == [(True, True)] * 2
    assert codes(tmp_path) == set()


MISTAKES = {
    "optimizer-first": (
        "FSDP201",
        "trainer",
        (
            "        net = settings.spec.split(net, DTYPES[settings.dtype])\n        self.parts = [net]\n"
            "        self.optim = settings.optim.make(parts=self.parts)\n",
            "        self.parts = [net]\n"
            "        self.optim = settings.optim.make(parts=self.parts)\n"
            "        settings.spec.split(net, DTYPES[settings.dtype])\n",
        ),
    ),
    "root-first": (
        "FSDP207",
        "nets",
        (
            "    for layer in net.layers.values():\n        fully_shard(layer, **options)\n"
            "    fully_shard(net, **options)\n",
            "    fully_shard(net, **options)\n"
            "    for layer in net.layers.values():\n        fully_shard(layer, **options)\n",
        ),
    ),
    "no-policy-for-one-dtype": (
        "FSDP241",
        "nets",
        ('{"mp_policy": policy}', '{"mp_policy": policy if dtype != torch.float32 else None}'),
    ),
    "forward": ("FSDP203", "trainer", ("self.parts[0](torch", "self.parts[0].forward(torch")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_behind_the_settings_is_found(tmp_path: Path, mistake: str) -> None:
    code, file, change = MISTAKES[mistake]
    assert codes(laid(tmp_path, **{file: change})) == {code}


ANNOTATED = """
from __future__ import annotations

import torch
from nets import Net
from torch.distributed.fsdp import fully_shard


def shard(net: "Net | None", mesh):
    if net is None:
        return None
    for layer in net.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net
"""


@pytest.mark.parametrize("otherwise", ["return None", "raise ValueError"])
def test_the_annotation_says_what_an_argument_is(tmp_path: Path, otherwise: str) -> None:
    for name in ("parts.py", "nets.py"):
        (tmp_path / name).write_text(FILES[name])
    (tmp_path / "alone.py").write_text(ANNOTATED.replace("return None", otherwise))
    alone = programs(tmp_path)["alone.py"]
    assert not alone["begins"]
    assert [seen["resolved"] for seen in alone["shards"]] == [True, True]
    assert codes(tmp_path) == set()


RECIPE = """
import importlib

import settings
import torch
from torch.distributed.fsdp import fully_shard


def instantiate(node, *args, **others):
    path, _, name = node["_target_"].rpartition(".")
    made = getattr(importlib.import_module(path), name)
    return made(*args, **{k: v for k, v in node.items() if k != "_target_"}, **others)


def make_from(node, *args):
    made = settings.find(node)
    return made(*args)


class Recipe:
    def setup(self, cfg):
        self.model = instantiate(cfg.model)
        self.split()
        self._optimizer = self._setup_optimizer(cfg.optimizer)
        if cfg.compile:
            self._optimizer.step = torch.compile(self._optimizer.step)

    def split(self):
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)

    def _setup_optimizer(self, cfg):
        optimizer = instantiate(cfg, self.model.parameters())
        return optimizer

    def train(self, batches):
        for batch in batches:
            self.model(batch).sum().backward()
            self._optimizer.step()
            self._optimizer.zero_grad()


def main():
    cfg = settings.load()
    recipe = Recipe()
    recipe.setup(cfg)
    recipe.train(settings.batches(cfg))


if __name__ == "__main__":
    main()
"""

BUILDERS = {
    "by the settings": "instantiate(cfg, self.model.parameters())",
    "by a function that cannot be followed": "make_from(cfg, self.model.parameters())",
    "by a list of them": "make_from(cfg, [p for p in self.model.parameters() if p.requires_grad])",
}


@pytest.mark.parametrize("how", BUILDERS)
def test_what_the_settings_build_of_parameters_is_an_optimizer(tmp_path: Path, how: str) -> None:
    made = RECIPE.replace(BUILDERS["by the settings"], BUILDERS[how])
    (tmp_path / "recipe.py").write_text(made)
    one = programs(tmp_path)["recipe.py"]
    assert [seen["linked"] for seen in one["steps"]] == [True]
    assert codes(tmp_path) == set()
    late = "        self._optimizer = self._setup_optimizer(cfg.optimizer)\n"
    early = made.replace(late, "").replace(
        "        self.split()\n", f"{late}        self.split()\n"
    )
    (tmp_path / "recipe.py").write_text(early)
    assert codes(tmp_path) == {"FSDP201"}


def test_what_is_not_called_an_optimizer_is_none(tmp_path: Path) -> None:
    """An average of the parameters is as stale above the sharding, but no optimizer."""
    text = RECIPE.replace(
        "        self.split()\n",
        "        self.average = make_from(cfg, self.model.parameters())\n        self.split()\n",
    )
    (tmp_path / "recipe.py").write_text(text)
    assert codes(tmp_path) == set()


def test_an_optimizer_that_may_be_missing(tmp_path: Path) -> None:
    """Where there is none, what is done instead still happens."""
    text = RECIPE.replace(
        "        optimizer = instantiate(cfg, self.model.parameters())\n        return optimizer\n",
        "        optimizer = make_from(cfg, self.model.parameters()) if cfg.train else None\n"
        "        if optimizer is None:\n            self.model.forward(settings.batch())\n"
        "        return optimizer\n",
    )
    (tmp_path / "recipe.py").write_text(text)
    assert codes(tmp_path) == {"FSDP203"}
