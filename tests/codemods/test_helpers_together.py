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


STEPS = """\
import torch
from contextlib import nullcontext


def step(model, batch, last=False):
    pause = nullcontext if last else model.no_sync
    with pause():
        model(batch).sum().backward()
"""
MAIN = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from {package}first import step
from {package}second import step as other

model = FSDP(nn.Linear(8, 8))
step(model, torch.randn(4, 8))
other(model, torch.randn(4, 8))
"""


def steps(main: str = MAIN, folder: str = "", first: str = STEPS, second: str = STEPS) -> list[str]:
    """The two modules of a program after the migration."""
    package = folder.replace("/", ".")
    made = migrated(
        **{f"{folder}first": first, f"{folder}second": second, "main": main.format(package=package)}
    )
    return [made[f"{folder}first"], made[f"{folder}second"]]


def test_a_function_of_two_modules_stays_in_one() -> None:
    first, second = steps()
    assert first.count("def no_sync(model):") == 1
    assert "from first import no_sync\n" in second
    assert "contextmanager" not in second
    assert "    pause = nullcontext if last else partial(no_sync, model)\n" in second


def test_a_package_that_imports_by_dots_goes_on_so() -> None:
    sizes = "from .sizes import SIZE\n"
    first, second = steps(folder="steps/", first=sizes + STEPS, second=sizes + STEPS)
    assert first.count("def no_sync(model):") == 1
    assert "from .first import no_sync\n" in second


def test_the_module_that_the_other_imports_has_it() -> None:
    first, second = steps(first=STEPS.replace("import torch\n", "import torch\nimport second\n", 1))
    assert "from second import no_sync\n" in first
    assert second.count("def no_sync(model):") == 1


def test_a_program_is_not_imported_for_it() -> None:
    made = migrated(
        first=STEPS + "\n\nif __name__ == '__main__':\n    print('steps')\n",
        second=STEPS.replace("import torch\n", "import torch\nimport first\n", 1),
        main=MAIN.format(package=""),
    )
    assert made["first"].count("def no_sync(model):") == 1
    assert made["second"].count("def no_sync(model):") == 1


def test_names_of_the_same_things_may_be_spelled_otherwise() -> None:
    spelled = STEPS.replace("import torch\n", "import contextlib\nimport torch\n", 1)
    first, second = steps(second=spelled)
    assert "no_sync" in second
    assert (first + second).count("def no_sync(model):") == 1
