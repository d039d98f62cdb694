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


@pytest.mark.parametrize(
    "copy", ["dict(options)", "{**options}", "dict(options, reduce_dtype=None)"]
)
def test_a_copy_of_one_of_several_is_followed(copy: str) -> None:
    text = f"""
        options = {{"param_dtype": torch.bfloat16}}
        if fast:
            options = dict(options, buffer_dtype=torch.bfloat16)
        options = {copy}
        MixedPrecisionPolicy(**options)
        """
    assert "FSDP231" in codes(text)
    assert "FSDP231" not in codes(text.replace("buffer_dtype", "reduce_dtype"))


@pytest.mark.parametrize(
    ("made", "writing"),
    [
        ("{}", "settings['kind'] = kind"),
        ("{}", "settings.update(kind=kind)"),
        ("load('train.yaml')", "settings['kind'] = kind"),
    ],
)
def test_an_entry_of_one_of_several_is_that_of_each(made: str, writing: str) -> None:
    text = f"""
        import copy
        from settings import kind, load

        settings = {made}
        if fast:
            settings = copy.deepcopy(settings)
        {writing}
        model = fully_shard(nn.Linear(8, 8)) if kind == "sharded" else nn.Linear(8, 8)
        if settings["kind"] != "sharded":
            model.forward(torch.ones(8))
        """
    assert "FSDP203" not in codes(text)
    assert "FSDP203" in codes(text.replace('!= "sharded"', '== "sharded"'))
