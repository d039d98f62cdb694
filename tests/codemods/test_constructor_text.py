"""The constructor codemod keeps to the line ends and the indentation of a file."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source

CODEMOD = next(c for c in knowledge.codemods() if c.name == "fsdp-constructor")

SCRIPT = """\
import functools
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy


def wrap(model, cfg):
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    if cfg.small: model = FSDP(model, auto_wrap_policy=policy); print(model)
    else:
        # sharded
        model = FSDP(  # keep
            (model), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), cpu_offload=(CPUOffload(True)),
        )
    return model
"""


def migrated(text: str) -> str:
    made = migrate((Source("train.py", text),), [CODEMOD], whole=False)
    assert made.failures == []
    return made.after[0].text


def test_nothing_of_fsdp1_is_left() -> None:
    text = migrated(SCRIPT)
    assert "FSDP(" not in text
    assert "CPUOffload(" not in text
    assert "# sharded" in text


def test_line_ends_stay() -> None:
    text = migrated(SCRIPT.replace("\n", "\r\n"))
    assert text.count("\n") == text.count("\r\n")
    assert text.replace("\r\n", "\n") == migrated(SCRIPT)


@pytest.mark.parametrize("unit", ["  ", "\t"])
def test_the_unit_of_indentation_is_the_files(unit: str) -> None:
    text = migrated(SCRIPT.replace("    ", unit))
    assert text.replace(unit, "    ") == migrated(SCRIPT)


def test_no_edit_where_there_is_nothing_to_do() -> None:
    script = "from torch import nn\n\nmodel = nn.Linear(8, 8)\n"
    assert migrate((Source("train.py", script),), [CODEMOD], whole=False).changed == []


def test_a_name_in_parentheses_is_that_name() -> None:
    assert "model = (model)" not in migrated(SCRIPT)


WITH_A_GROUP = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, process_group=None):
    return FSDP(
        model,
        process_group=process_group,
        device_id=torch.cuda.current_device(),
        sync_module_states=True,
    )
"""


@pytest.mark.parametrize("call", ["", "\n\nshard(torch.nn.Linear(8, 8).cuda())\n"])
def test_a_group_that_callers_elsewhere_may_give_is_used_where_it_is_one(call: str) -> None:
    text = migrated(WITH_A_GROUP + call)
    made = 'DeviceMesh.from_group(process_group, "cuda") if process_group is not None else None'
    assert " ".join(text.split()).count(made) == 1
    assert "src=0, group=process_group" in text or "group=process_group, group_src=0" in text


OFF = """\
import torch
from settings import config
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

half = MixedPrecision(param_dtype=torch.bfloat16)
model = FSDP(
    nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)),
    auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
    mixed_precision=PRECISION,
    cpu_offload=OFFLOAD,
)
"""


@pytest.mark.parametrize("none", ["None", "False"])
def test_what_is_false_is_left_out_as_none_is(none: str) -> None:
    text = migrated(OFF.replace("PRECISION", none).replace("OFFLOAD", none))
    assert "mp_policy" not in text
    assert "offload_policy" not in text


def test_one_side_may_be_false() -> None:
    script = OFF.replace("PRECISION", "half if config.half else NONE")
    script = script.replace("OFFLOAD", "CPUOffload(True) if config.low else NONE")
    for none in ("False", "None"):
        text = migrated(script.replace("NONE", none))
        assert "offload_policy = CPUOffloadPolicy() if config.low else OffloadPolicy()" in text
        assert ("if not precision:" in text) is (none == "False")
        assert "precision is None" not in text
