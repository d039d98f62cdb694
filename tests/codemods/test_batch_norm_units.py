"""Batch norms are units of their own in the runs in which FSDP1 made them so: those with mixed precision."""

from __future__ import annotations

import pytest

from tests.migrate.test_ledger import made

PROGRAM = """\
import sys
from functools import partial
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy


def build(network, policy, low):
    precision = {precision}
    return FSDP(network, auto_wrap_policy=policy, mixed_precision=precision)


policy = {policy}
network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).cuda()
model = build(network, policy, len(sys.argv) > 1)
"""
HALF = "MixedPrecision(param_dtype=torch.float16)"
POLICIES = [
    "partial(size_based_auto_wrap_policy, min_num_params=100)",
    "ModuleWrapPolicy({nn.Conv2d})",
]


@pytest.mark.parametrize("policy", POLICIES)
def test_only_in_runs_with_mixed_precision(policy: str) -> None:
    text = made(PROGRAM.format(precision=f"{HALF} if low else None", policy=policy)).after[0].text
    above = "if mp_policy.param_dtype:\n        for module in network.modules():"
    assert above in text or "if mp_policy.param_dtype and isinstance(module, _BatchNorm)" in text


@pytest.mark.parametrize("policy", POLICIES)
def test_always_where_it_is_always_given(policy: str) -> None:
    text = made(PROGRAM.format(precision=HALF, policy=policy)).after[0].text
    assert "isinstance(" in text
    assert "param_dtype:" not in text
    assert "param_dtype and" not in text
