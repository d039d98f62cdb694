"""Settings that a script sets under names that only a file knows: no default is certain any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.check.runner import Batch, check
from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, named

SCRIPT = """\
import json
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard


class Saving:
    def __init__(self, interval=0):
        self.interval = interval


@dataclass
class Files:
    saving: Saving


class Config:
    def __init__(self):
        self.saving = Saving()
        self.files = Files(Saving())
        self.kinds = {"saving": Saving}

    def read(self, values):
        SET


config = Config()
config.read(json.load(open("config.json")))
dist.init_process_group("nccl")
model = nn.Linear(8, 8)
fully_shard(model)
model(torch.ones(2, 8)).sum().backward()
if config.ASKED.interval > 0 and dist.get_rank() == 0:
    dcp.save({"model": model.state_dict()}, checkpoint_id="out")
dist.destroy_process_group()
"""
UNKNOWN = "for name, value in values.items():\n            setattr(self, name, {})"


@pytest.mark.parametrize(
    ("how", "asked", "saves"),
    [
        (UNKNOWN.format("self.kinds[name](**value)"), "saving", True),
        (UNKNOWN.format("value"), "saving", True),
        (UNKNOWN.format("value"), "files.saving", True),
        ("setattr(self, 'name', values['name'])", "saving", False),
        ("pass", "files.saving", False),
    ],
)
def test_a_default_is_not_certain_where_any_setting_is_set(
    how: str, asked: str, saves: bool
) -> None:
    text = SCRIPT.replace("SET", how).replace("ASKED", asked)
    assert ("FSDP401" in codes(text)) is saves


def codes(text: str) -> set[str]:
    return {one.code for one in named(list(findings([Source("train.py", text)])))}


FIELDS = """\
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple
from torch import nn
from torch.distributed.fsdp import fully_shard


@dataclass
class Saving:
    on: bool = False
    interval: int = 0
    form: str = "none"
    folder: str | None = None
    name: str = ""


@dataclass
class Config:
    saving: Saving = field(default_factory=Saving)
    batch: int = 8


def train(config: Config, on=False):
    dist.init_process_group("nccl")
    model = nn.Linear(8, 8)
    fully_shard(model)
    model(torch.ones(config.batch, 8)).sum().backward()
    if TEST and dist.get_rank() == 0:
        dcp.save({"model": model.state_dict()}, checkpoint_id="out")
    dist.destroy_process_group()


train(MADE)
"""


@pytest.mark.parametrize(
    ("test", "made", "saves"),
    [
        ("config.saving.on", "Config()", True),
        ("config.saving.interval > 0", "Config()", True),
        ("config.saving.interval", "Config()", True),
        ("not config.saving.interval == 0", "Config()", True),
        ("config.saving.folder", "Config()", True),
        ("config.saving.folder is not None", "Config()", True),
        ("config.saving.name", "Config()", True),
        ("not (config.saving.on is False)", "Config()", True),
        ("config.saving.on", "Config(Saving(False))", False),
        ("config.saving.interval > 0", "Config(Saving(interval=0))", False),
        ('config.saving.form == "whole"', "Config()", False),
        ("config.batch > 8", "Config()", False),
        ("on", "Config()", False),
    ],
)
def test_what_the_default_of_a_field_leaves_out_is_followed(
    test: str, made: str, saves: bool
) -> None:
    """A dataclass lists what can be chosen; what the program itself gives to a field or a parameter is so."""
    assert ("FSDP401" in codes(FIELDS.replace("TEST", test).replace("MADE", made))) is saves


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("on: bool = False", "on: ClassVar[bool] = False"),
        ("on: bool = False", "on: Literal[False] = False"),
        ("    on: bool = False", "    loss: float\n    on: bool = False"),
        ("train(Config())", "config = Config()\nconfig.saving.on = False\ntrain(config)"),
        ("@dataclass\nclass Saving:", "class Saving(NamedTuple):"),
    ],
)
def test_a_field_that_no_user_chooses_is_what_it_is(old: str, new: str) -> None:
    """A constant of the class, a result with a value of its own, what the program sets itself."""
    text = FIELDS.replace("TEST", "config.saving.on").replace("MADE", "Config()")
    assert old in text
    assert "FSDP401" in codes(text)
    assert "FSDP401" not in codes(text.replace(old, new))


def test_a_field_that_is_none_by_default_is_none_for_who_uses_it() -> None:
    text = FIELDS.replace("dist.get_rank() == 0", "dist.get_rank(config.saving.folder) == 0")
    assert "FSDP401" in codes(text.replace("TEST", "True").replace("MADE", "Config()"))


def test_the_default_of_a_field_counts_where_the_program_computes_with_it() -> None:
    assert "FSDP401" not in codes(
        FIELDS.replace("TEST", "config.batch * 0").replace("MADE", "Config()")
    )


NONE_BY_DEFAULT = """\
import json
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


@dataclass
class Norm:
    kind: str = "rms"

    def size(self):
        return 8

    def build(self):
        return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))


@dataclass
class Config:
    norm: Norm | None = None


config = Config(**json.load(open("config.json")))
if config.norm is not None:
    print(config.norm.size())
model = config.norm.build()
fully_shard(model)
"""


def test_a_setting_that_is_none_by_default_is_what_its_annotation_says(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NONE_BY_DEFAULT)
    (one,) = check(Batch.of_files([str(tmp_path / "train.py")])).programs
    (site,) = one.shards
    assert site.resolved
    assert not one.lost


IN_A_DICTIONARY = """\
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

DEFAULTS = {"interval": 0, "models": ()}


def settings():
    found = dict(DEFAULTS)
    for one in sys.argv[1:]:
        name, _, value = one.partition("=")
        SET
    return found


config = settings()
dist.init_process_group("nccl")
model = nn.Linear(8, 8)
fully_shard(model)
model(torch.ones(2, 8)).sum().backward()
if config["interval"] > 0 and dist.get_rank() == 0:
    dcp.save({"model": model.state_dict()}, checkpoint_id="out")
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("how", "saves"),
    [
        ("found[name] = int(value)", True),
        ("found[name.strip()] = value", True),
        ("found['name'] = value", False),
        ("print(name, value)", False),
    ],
)
def test_an_entry_is_not_certain_where_any_is_set(how: str, saves: bool) -> None:
    text = IN_A_DICTIONARY.replace("SET", how)
    found = {one.code for one in named(list(findings([Source("train.py", text)])))}
    assert ("FSDP401" in found) is saves
