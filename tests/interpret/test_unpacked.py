"""``f(**options)`` where both the function and its options depend on the same test."""

from __future__ import annotations

from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings

HEAD = """
import torch
from torch import nn
from torch.distributed.fsdp import (
    FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
)
from settings import version, fast
"""
CHOSEN = {
    "policy": """
        policy = MixedPrecision if version == 1 else MixedPrecisionPolicy
        options = {"param_dtype": torch.bfloat16}
        if version == 1:
            options["buffer_dtype"] = torch.bfloat16
        policy(**options)
        """,
    "wrapper in a class": """
        class Plugin:
            def __init__(self, version):
                self.version = version
                self.wrap = FullyShardedDataParallel if self.version == 1 else fully_shard

            def options(self):
                chosen = {}
                if self.version == 1:
                    chosen["use_orig_params"] = True
                return chosen

        plugin = Plugin(version)
        plugin.wrap(nn.Linear(8, 8), **plugin.options())
        """,
}


@pytest.mark.parametrize("what", CHOSEN)
def test_each_gets_the_options_of_its_own_side(what: str) -> None:
    assert "FSDP231" not in codes(CHOSEN[what])


@pytest.mark.parametrize("what", CHOSEN)
def test_options_of_another_choice_reach_both(what: str) -> None:
    before, given, after = CHOSEN[what].partition("ersion == 1:")
    assert given
    other = f"{before.rpartition('if ')[0]}if fast:{after}"
    assert "FSDP231" in codes(other)


def codes(text: str) -> set[str]:
    return {rule.code for rule, _ in findings([Source("train.py", HEAD + dedent(text))])}
