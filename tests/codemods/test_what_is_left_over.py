"""Nothing stays that served FSDP1 alone: emptied tests, imports, annotations with classes of settings."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source


def migrated(text: str) -> str:
    made = migrate((Source("train.py", text),), knowledge.codemods())
    assert made.failures == []
    return made.after[0].text


POLICY = """\
import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.fsdp import wrap as wrapping


def shard(model: nn.Module, classes: set, {argument}):
    return fsdp.FullyShardedDataParallel(
        model,
        auto_wrap_policy={policy},
        device_id=torch.cuda.current_device(),
    )


shard(nn.Transformer(), {{nn.Linear}}, True)
"""


@pytest.mark.parametrize(
    ("argument", "policy", "test"),
    [
        (
            "on=True",
            "wrapping.ModuleWrapPolicy(classes) if classes else None",
            "isinstance(module, wrap_classes)",
        ),
        (
            "on=True",
            "wrapping.ModuleWrapPolicy(classes) if on else None",
            "on and isinstance(module, tuple(classes))",
        ),
        (
            "on=True",
            "None if on else wrapping.ModuleWrapPolicy({nn.Linear})",
            "not (on) and isinstance(module, nn.Linear)",
        ),
    ],
)
def test_a_policy_on_condition(argument: str, policy: str, test: str) -> None:
    text = migrated(POLICY.format(argument=argument, policy=policy))
    assert f"if {test} and module is not model:" in text
    assert "wrapping" not in text


EMPTIED = """\
import torch
from torch import nn
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    ShardedStateDictConfig,
    StateDictType,
)


def build(config, device):
    model = FSDP(nn.Linear(8, 8), device_id=device)
    if config.verbose:
        pass
    if {test}:
        FSDP.set_state_dict_type(
            model, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig()
        )
    return model


def main(config):
    model = build(config, 0)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        torch.distributed.checkpoint.save(model.state_dict(), checkpoint_id="kept")
"""


@pytest.mark.parametrize(
    ("test", "stays"),
    [
        ("config.sharded", False),
        ("config.kind == 'sharded'", False),
        ("not torch.cuda.is_available()", False),
        ("config.ask()", True),
    ],
)
def test_a_test_that_the_migration_has_emptied(test: str, stays: bool) -> None:
    text = migrated(EMPTIED.format(test=test))
    assert (f"if {test}:" in text) is stays
    assert "if config.verbose:\n        pass\n" in text


CHOSEN = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


def build(config):
    model = FSDP(nn.Linear(8, 8), device_id=0)
    scaler = (ShardedGradScaler if config.fsdp else torch.amp.GradScaler)(enabled=config.half)
    if config.fsdp:
        # the one that knows shards
        other = ShardedGradScaler()
    else:
        # the one that knows shards
        other = torch.amp.GradScaler("cuda")
    size = 3 if config.large else 3
    return model, scaler, other, size


def asked(config):
    return ShardedGradScaler() if config.ask() else torch.amp.GradScaler('cuda')


build(None)
"""


def test_a_choice_whose_sides_the_migration_has_made_the_same() -> None:
    text = migrated(CHOSEN)
    assert "    scaler = torch.amp.GradScaler(enabled=config.half)\n" in text
    assert (
        '    # the one that knows shards\n    other = torch.amp.GradScaler("cuda")\n    size'
        in text
    )
    assert "size = 3 if config.large else 3" in text  # it was so before
    assert "if config.ask() else" in text


PAIRS = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, optimizer):
    one, other = FullStateDictConfig(rank0_only=True), FullOptimStateDictConfig(rank0_only=True)
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, one, other)
    weights, moments = model.state_dict(), FSDP.optim_state_dict(model, optimizer)  # both
    first, second = 1, {first}
    if torch.distributed.get_rank() == 0:
        torch.save([weights, moments], "state.pt")
    return first, second


model = FSDP(nn.Linear(8, 8), device_id=0)
save(model, torch.optim.AdamW(model.parameters()))
"""


def test_pairs_that_become_too_long_fall_apart_and_unread_ones_go() -> None:
    text = migrated(PAIRS)
    assert "    weights = get_model_state_dict(\n" in text
    assert "    moments = get_optimizer_state_dict(\n" in text
    assert "    )  # both\n" in text
    assert "first, second = 1, {first}" in text
    assert "StateDictConfig" not in text


ANNOTATED = """\
from typing import Optional

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


class Trainer:
    def __init__(self, low):
        self.low = low
        self.model = FSDP(nn.Linear(8, 8), mixed_precision=self.precision(), device_id=0)

    def precision(self) -> {annotation}:
        return MixedPrecision(param_dtype=torch.bfloat16) if self.low else None


Trainer(True)
"""


@pytest.mark.parametrize(
    "annotation", ["Optional[MixedPrecision]", '"MixedPrecision | None"', "MixedPrecision | None"]
)
def test_an_annotation_names_the_policy(annotation: str) -> None:
    text = migrated(ANNOTATED.format(annotation=annotation))
    new = annotation.replace("MixedPrecision", "MixedPrecisionPolicy")
    assert f"def precision(self) -> {new}:" in text
    assert "MixedPrecision\n" not in text


BOOL = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def shard(model, full{annotation}):
    strategy = ShardingStrategy.FULL_SHARD if full else ShardingStrategy.SHARD_GRAD_OP
    return FSDP(model, sharding_strategy=strategy, device_id=0)


shard(nn.Linear(8, 8), True)
shard(nn.Linear(8, 8), False)
"""


@pytest.mark.parametrize(("annotation", "said"), [(": bool", "full"), ("", "bool(full)")])
def test_an_annotated_bool_is_one(annotation: str, said: str) -> None:
    assert f"= {said}\n" in migrated(BOOL.format(annotation=annotation))


BRANCHES = """\
import torch
from torch import nn
from torch.distributed.fsdp import BackwardPrefetch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def keywords(args):
    kwargs = {{"device_id": torch.cuda.current_device()}}
    if args.first:
        {first}
    elif args.second:
        kwargs["backward_prefetch"] = BackwardPrefetch.BACKWARD_PRE
    {last}
    return kwargs


def prepare(args):
    return FSDP(nn.Linear(8, 8), **keywords(args))
"""
POST = 'kwargs["backward_prefetch"] = BackwardPrefetch.BACKWARD_POST'


@pytest.mark.parametrize(
    ("first", "last", "kept"),
    [
        (POST, f"else:\n        {POST}", ""),
        (POST, "", ""),
        ("print(1)", "", "    if args.first:\n        print(1)\n    return"),
        (POST, "else:\n        print(2)", "print(2)"),
        (POST, "else:\n        # never\n        pass", "pass"),
    ],
)
def test_branches_that_the_migration_empties_go(first: str, last: str, kept: str) -> None:
    text = migrated(BRANCHES.format(first=first, last=last).replace("    \n", ""))
    assert "FSDP(" not in text
    assert kept in text
    assert ("args." in text) == bool(kept)


READ = """\
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffload
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def keywords(args):
    return {{"cpu_offload": CPUOffload(offload_params=args.offload)}}


def build(args):
    options = keywords(args)
    {use}
    return FSDP(nn.Linear(8, 8), **options)
"""


@pytest.mark.parametrize(
    ("use", "migrates"),
    [
        ("print(sorted(options))", True),
        ('print(options["cpu_offload"].offload_params)', False),
        ('print(options.get("cpu_offload"))', False),
        ('print(keywords(args)["cpu_offload"])', False),
    ],
)
def test_a_dictionary_whose_old_entries_are_read_stays(use: str, migrates: bool) -> None:
    assert ("FSDP(" not in migrated(READ.format(use=use))) == migrates
