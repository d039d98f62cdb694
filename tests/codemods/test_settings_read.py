"""What a program reads of FSDP1's settings is still there once they are FSDP2's."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

PRECISION = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

precision = MixedPrecision(
    param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=BUFFERS
)
model = FSDP(nn.Linear(8, 8), mixed_precision=precision)
print(f"buffers: {precision.buffer_dtype}")
"""

STRATEGIES = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

KIND = ShardingStrategy.FULL_SHARD


class Trainer:
    KIND = ShardingStrategy.SHARD_GRAD_OP

    def __init__(self, kind: str) -> None:
        if kind == "zero2":
            self.kind = ShardingStrategy._HYBRID_SHARD_ZERO2
        else:
            self.kind = ShardingStrategy.HYBRID_SHARD
        device = torch.cuda.current_device()
        self.plain = FSDP(nn.Linear(8, 8), sharding_strategy=KIND, device_id=device)
        self.kept = FSDP(nn.Linear(8, 8), sharding_strategy=self.KIND, device_id=device)
        self.hybrid = FSDP(nn.Linear(8, 8), sharding_strategy=self.kind, device_id=device)


Trainer("zero2")
"""


def migrated(**files: str) -> str:
    """The first file after the migration."""
    sources = tuple(Source(f"{name}.py", text) for name, text in files.items())
    made = migrate(sources, knowledge.codemods())
    assert made.failures == []
    return made.after[0].text


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        ("torch.float32", "precision.reduce_dtype"),
        ("torch.bfloat16", "precision.param_dtype"),
        ("torch.float16", "torch.float16"),
    ],
)
def test_the_dtype_of_buffers_is_said_in_another_way(dtype: str, said: str) -> None:
    text = migrated(train=PRECISION.replace("BUFFERS", dtype))
    assert "precision = MixedPrecisionPolicy(" in text
    assert f"{{{said}}}" in text


def test_settings_of_which_more_is_read_stay_as_data() -> None:
    script = PRECISION.replace("BUFFERS", "torch.float32")
    text = migrated(
        train=script.replace(
            "precision.buffer", "precision.cast_root_forward_inputs or precision.buffer"
        )
    )
    assert "precision = MixedPrecision(" in text


def test_a_strategy_of_a_class_and_hybrid_ones_need_no_table() -> None:
    text = migrated(train=STRATEGIES, other="def asked(self):\n    return self.KIND\n")
    assert "sharding_options" not in text
    assert "self.kept = fully_shard(nn.Linear(8, 8), reshard_after_forward=False)" in text
    assert 'reshard_after_forward=self.kind == "HYBRID_SHARD"' in text
    assert 'KIND = "FULL_SHARD"' not in text


def test_a_constant_that_another_file_takes_stays() -> None:
    text = migrated(train=STRATEGIES, other="from train import KIND\n\nprint(KIND)\n")
    assert 'KIND = "FULL_SHARD"\n' in text


def test_a_constant_of_a_module_that_only_the_run_chooses_stays() -> None:
    text = migrated(
        train=STRATEGIES,
        other="import importlib\n\n\ndef asked(name):\n    plan = importlib.import_module(name)\n    return plan.KIND\n",
    )
    assert 'KIND = "FULL_SHARD"\n' in text


TABLE = """\
import os
import torch
from torch import nn
from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy


def strategy(name):
    table = {"zero2": ShardingStrategy.SHARD_GRAD_OP, "ddp": ShardingStrategy.NO_SHARD}
    return table.get(name, ShardingStrategy.FULL_SHARD)


def prefetch(name):
    return BackwardPrefetch.BACKWARD_PRE if name == "pre" else BackwardPrefetch.BACKWARD_POST


def shard(model, device, process_group=None):
    return FSDP(model, device_id=device, process_group=process_group)


device = torch.cuda.current_device()
first = FSDP(
    nn.Linear(8, 8),
    sharding_strategy=strategy(os.environ["STRATEGY"]),
    backward_prefetch=prefetch(os.environ["PREFETCH"]),
    device_id=device,
)
second = shard(nn.Linear(8, 8), device)
"""


def test_only_the_strategies_of_a_table_are_written_out() -> None:
    text = migrated(train=TABLE)
    assert 'if strategy == "SHARD_GRAD_OP":' in text
    assert 'if strategy == "NO_SHARD":' in text
    assert "HYBRID" not in text


def test_a_function_that_chose_what_fsdp2_does_not_have_goes() -> None:
    assert "prefetch" not in migrated(train=TABLE).lower()


def test_a_group_that_callers_may_give_is_not_forgotten() -> None:
    assert "DeviceMesh.from_group(process_group, " in migrated(train=TABLE)
