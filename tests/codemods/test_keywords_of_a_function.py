"""Keywords that a function makes and a class keeps: they become those of `fully_shard` where they are written."""

from __future__ import annotations

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

SCRIPT = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def keywords(device, strategy):
    return dict(sharding_strategy=ShardingStrategy[strategy], device_id=device, use_orig_params=True)


class Models:
    def __init__(self, device, strategy):
        self.keywords = keywords(device, strategy)

    def add(self, module, blocks):
        return FSDP(module, auto_wrap_policy=ModuleWrapPolicy(blocks), **self.keywords)


parser = argparse.ArgumentParser()
parser.add_argument("--cpu", action="store_true")
parser.add_argument("--strategy", default="FULL_SHARD")
args = parser.parse_args()
cuda = torch.cuda.is_available() and not args.cpu
dist.init_process_group("nccl" if cuda else "gloo")
device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu")
model = Models(device, args.strategy).add(nn.Sequential(nn.Linear(8, 8)).to(device), {nn.Linear})
"""


def test_they_are_rewritten_in_the_function() -> None:
    made = migrate((Source("train.py", SCRIPT),), knowledge.codemods())
    text = made.after[0].text
    assert not made.failures
    assert not made.remaining
    assert "FSDP(" not in text
    assert "fully_shard(" in text
    assert "ShardingStrategy" not in text
    # the program may train on the CPU beside a GPU, which `fully_shard` would take without a mesh
    assert 'options["mesh"] = init_device_mesh(device_type, (dist.get_world_size(),))' in text


def test_only_what_the_command_line_offers_is_told_apart() -> None:
    offered = ', choices=["FULL_SHARD", "SHARD_GRAD_OP"])'
    given = SCRIPT.replace('default="FULL_SHARD")', f'default="FULL_SHARD"{offered}')
    text = migrate((Source("train.py", given),), knowledge.codemods()).after[0].text
    assert 'reshard_after_forward=strategy != "SHARD_GRAD_OP"' in text
    assert "sharding_options" not in text
    assert "ShardingStrategy" not in text


def test_a_field_of_the_same_name_may_be_any_strategy() -> None:
    offered = ', choices=["FULL_SHARD", "SHARD_GRAD_OP"])'
    given = SCRIPT.replace('default="FULL_SHARD")', f'default="FULL_SHARD"{offered}')
    given = given.replace("import os\n", "import os\n\nfrom omegaconf import OmegaConf\n")
    read = 'OmegaConf.load("settings.yaml").strategy'
    given = given.replace("Models(device, args.strategy)", f"Models(device, {read})")
    text = migrate((Source("train.py", given),), knowledge.codemods()).after[0].text
    assert "HYBRID_SHARD" in text
