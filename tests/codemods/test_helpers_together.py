"""A function that several files of a project need comes once, into the module that they share."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

TRAIN = """\
import sys
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from tools import setup

rank = setup()
kinds = {"full": ShardingStrategy.FULL_SHARD, "hybrid": ShardingStrategy.HYBRID_SHARD}
device = torch.cuda.current_device()
model = FSDP(nn.Linear(8, 8), sharding_strategy=kinds[sys.argv[1]], device_id=device)
dist.barrier()
"""
SHARED = """\
import os

import torch.distributed as td


def setup():
    td.init_process_group("gloo")
    return int(os.environ["LOCAL_RANK"])
"""


def migrated(**files: str) -> dict[str, str]:
    """The files after the migration."""
    sources = tuple(Source(f"{name}.py", text) for name, text in files.items())
    made = migrate(sources, knowledge.codemods())
    assert not made.failures
    for one in made.after:
        compile(one.text, one.path, "exec")
    again = migrate(made.after, knowledge.codemods())
    assert not again.changed
    return {one.path.removesuffix(".py"): one.text for one in made.after}


def shared(name: str) -> dict[str, str]:
    """Two programs and the module that both import."""
    train = TRAIN.replace("from tools ", f"from {name} ")
    return migrated(one=train, two=train, **{name: SHARED})


def test_a_function_of_two_files_moves_into_their_tools() -> None:
    made = shared("utils")
    assert made["utils"].count("def sharding_options(strategy):") == 1
    assert "td.get_world_size()" in made["utils"]
    assert "torch.cuda.device_count()" in made["utils"]
    for name in ("one", "two"):
        assert "def sharding_options" not in made[name]
        assert "from utils import setup, sharding_options\n" in made[name]
        assert "**sharding_options(kinds[sys.argv[1]])" in made[name]
        assert "init_device_mesh" not in made[name]


@pytest.mark.parametrize("name", ["models", "checkpoint_utils", "start"])
def test_it_stays_where_no_module_is_for_such_functions(name: str) -> None:
    made = shared(name)
    assert made[name] == SHARED
    assert "def sharding_options" in made["one"]
    assert "def sharding_options" in made["two"]


def test_it_stays_where_the_module_imports_one_of_the_files() -> None:
    train = TRAIN.replace("from tools ", "from utils ")
    made = migrated(one=train, two=train, utils=SHARED + "\n\ndef main():\n    import one\n")
    assert "def sharding_options" in made["one"]


def test_the_function_of_one_file_stays() -> None:
    made = migrated(one=TRAIN.replace("from tools ", "from utils "), utils=SHARED)
    assert made["utils"] == SHARED
