"""A dictionary of FSDP1's keywords that statements fill on condition becomes one of fully_shard's."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

SCRIPT = """\
import functools

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffload,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)


def build(args, device):
    model = nn.Sequential(Block(), Block())
    kwargs = {{"device_id": device, "auto_wrap_policy": policy()}}
    if args.bf16:
        kwargs["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
    if args.offload:
        kwargs["cpu_offload"] = CPUOffload(offload_params=True)
    {more}
    return FSDP(model, **kwargs)


def policy():
    return functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={{Block}})
"""


def migrated(more: str) -> str:
    made = migrate((Source("train.py", SCRIPT.format(more=more)),), knowledge.codemods())
    assert made.failures == []
    text = made.after[0].text
    compile(text, "train.py", "exec")
    return text


def test_each_statement_writes_an_entry_of_fully_shard() -> None:
    text = migrated(
        'if args.keep:\n        kwargs["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP'
    )
    for line in (
        'kwargs = {"mp_policy": MixedPrecisionPolicy()}',
        'kwargs["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)',
        'kwargs["offload_policy"] = CPUOffloadPolicy()',
        'kwargs["reshard_after_forward"] = False',
        'mp_policy = kwargs.pop("mp_policy")',
        "inner_policy = replace(mp_policy, cast_forward_inputs=False)",
        "return fully_shard(model, mp_policy=mp_policy, **kwargs)",
    ):
        assert f"{line}\n" in text
    assert "precision_policy" not in text


def test_what_is_added_in_every_run_stands_in_the_call() -> None:
    text = migrated('kwargs["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP')
    assert "sharding_strategy" not in text
    assert "reshard_after_forward=False" in text


@pytest.mark.parametrize(
    "more",
    [
        'if args.name:\n        kwargs["sharding_strategy"] = ShardingStrategy[args.name]',
        "print(kwargs)",
    ],
    ids=["a strategy that only the run knows", "it is read elsewhere too"],
)
def test_where_that_cannot_be_done_the_call_asks_for_the_entries(more: str) -> None:
    text = migrated(more)
    assert 'kwargs["mixed_precision"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)' in text
    assert 'kwargs.get("mixed_precision") or MixedPrecisionPolicy()' in text
    assert "precision_policy" not in text
