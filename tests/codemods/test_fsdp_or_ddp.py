"""A program that shards by FSDP1 in some runs and takes DDP or nothing in others does the same in all of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

TOOLS = """\
from contextlib import contextmanager

try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig
    from torch.distributed.fsdp import ShardingStrategy, StateDictType

    HAS_FSDP = True
except ImportError:
    FSDP = None
    HAS_FSDP = False


def is_fsdp(model):
    return HAS_FSDP and isinstance(model, FSDP)


def strategy(name):
    return {"full": ShardingStrategy.FULL_SHARD, "grad": ShardingStrategy.SHARD_GRAD_OP}[name.lower()]


@contextmanager
def full_state(model):
    if is_fsdp(model):
        with FSDP.state_dict_type(
            model,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(rank0_only=False),
            FullOptimStateDictConfig(rank0_only=False),
        ):
            yield
    else:
        yield
"""
TRAIN = """\
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tools


def distribute(model, how):
    if how == "fsdp":
        return tools.FSDP(
            model,
            sharding_strategy=tools.strategy(os.environ.get("SHARD", "full")),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
    if how == "ddp":
        return DistributedDataParallel(model)
    return model


def state_of(model, optimizer):
    with tools.full_state(model):
        weights = model.state_dict()
        if tools.is_fsdp(model):
            optim = tools.FSDP.optim_state_dict(model, optimizer)
        else:
            optim = optimizer.state_dict()
    return {"weights": weights, "optim": optim}


def load(model, optimizer, path):
    state = torch.load(path)
    with tools.full_state(model):
        model.load_state_dict(state["weights"])
        optim = state["optim"]
        if tools.is_fsdp(model):
            optim = tools.FSDP.optim_state_dict_to_load(model, optimizer, optim)
    optimizer.load_state_dict(optim)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = distribute(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), sys.argv[1])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
if "resume" in sys.argv:
    load(model, optimizer, "state.pt")
for step in range(2):
    model(torch.ones(3, 8) * (step + dist.get_rank())).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
state = state_of(model, optimizer)
if dist.get_rank() == 0:
    torch.save(state, "state.pt")
dist.destroy_process_group()
"""


def migrated() -> dict[str, str]:
    made = migrate((Source("tools.py", TOOLS), Source("train.py", TRAIN)), knowledge.codemods())
    assert made.failures == []
    assert made.ledger.manual == []
    return {one.path: one.text for one in made.after}


def test_what_serves_fsdp1_alone_goes() -> None:
    after = migrated()
    assert after["tools.py"] == (
        "try:\n"
        "    from torch.distributed.fsdp import FSDPModule\n"
        "\n"
        "    HAS_FSDP = True\n"
        "except ImportError:\n"
        "    HAS_FSDP = False\n"
        "\n"
        "\n"
        "def is_fsdp(model):\n"
        "    return HAS_FSDP and isinstance(model, FSDPModule)\n"
        "\n"
        "\n"
        "def strategy(name):\n"
        '    return {"full": "FULL_SHARD", "grad": "SHARD_GRAD_OP"}[name.lower()]\n'
    )
    assert 'tools.strategy(os.environ.get("SHARD", "full")) != "SHARD_GRAD_OP"' in after["train.py"]
    assert "full_state(" not in after["train.py"]
    assert "    else:\n        optimizer.load_state_dict(optim)\n" in after["train.py"]


def test_a_function_of_one_line_that_asks() -> None:
    asks = "def is_fsdp(model):\n    return HAS_FSDP and isinstance(model, FSDP)\n"
    tools = TOOLS.replace(asks, asks.replace("\n    return", " return"))
    assert tools != TOOLS
    made = migrate((Source("tools.py", tools), Source("train.py", TRAIN)), knowledge.codemods())
    assert made.failures == []
    assert "full_state(" not in made.after[1].text


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("torch") is None, reason="running needs torch")
@pytest.mark.parametrize("how", ["fsdp", "ddp"])
def test_each_way_goes_on_from_its_checkpoint(tmp_path: Path, how: str) -> None:
    from fsdp2lint.prove.compare import Options, Trial
    from fsdp2lint.prove.equality import apart
    from fsdp2lint.prove.places import find
    from tests.verify.scenes import forking

    for folder, files in (
        ("before", {"tools.py": TOOLS, "train.py": TRAIN}),
        ("after", migrated()),
    ):
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    options = Options(timeout=600.0, resume=((how,), (how, "resume")))
    before, after = (find(str(tmp_path / one / "train.py")) for one in ("before", "after"))
    with forking() as ranks, Trial(before, options, run=ranks.launch, compare=apart.main) as trial:
        found = trial.against(after)
    assert found.fault is None
    assert [one.message for one in found.differences] == []
