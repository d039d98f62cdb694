"""Sets of names in two processes (FSDP420): the damage where each has a hash seed of its own, and further forms."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, named

SUMS = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method="file://STORE", rank=RANK, world_size=2)
sums = {f"metric_{i}": torch.full((), float(i)) for i in range(12)}
for name in ORDER:
    dist.all_reduce(sums[name])
print("wrong", sum(one.item() != 2.0 * i for i, one in enumerate(sums.values())))
dist.destroy_process_group()
"""


def wrong(order: str, seeds: tuple[str, str], store: Path) -> int:
    """How many of twelve sums are wrong on rank 0 of two processes with these hash seeds, which meet in a file."""
    script = SUMS.replace("ORDER", order).replace("STORE", str(store))
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script.replace("RANK", str(rank))],
            env=os.environ | {"PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, seed in enumerate(seeds)
    ]
    said = [one.communicate(timeout=600)[0] for one in started]
    return int(said[0].rpartition("wrong ")[2])


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("torch") is None, reason="this needs torch")
def test_ranks_that_hash_otherwise_add_up_different_things(tmp_path: Path) -> None:
    assert wrong("set(sums)", ("1", "2"), tmp_path / "apart") > 0
    assert wrong("sorted(set(sums))", ("1", "2"), tmp_path / "alike") == 0


HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
sums = {"loss": torch.ones(1), "accuracy": torch.ones(1)}
heads = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
"""
FORMS = {
    "a set of keys": ("for name in set(sums):\n    dist.all_reduce(sums[name])", True),
    "a set that grew": (
        "names = set()\nnames.add('loss')\nnames.add('accuracy')\nfor n in names:\n    dist.all_reduce(sums[n])",
        True,
    ),
    "a value with a name of its own": (
        "for name in {'loss', 'accuracy'}:\n    value = sums[name]\n    dist.all_reduce(value)",
        True,
    ),
    "sharded heads, one after the other": (
        """
        for head in heads.values():
            fully_shard(head)
        for name in {"a", "b"}:
            heads[name](torch.ones(2, 8))
        """,
        True,
    ),
    "a set of modules": (
        """
        parts = {heads["a"], heads["b"]}
        for head in parts:
            fully_shard(head)
        for head in parts:
            head(torch.ones(2, 8))
        """,
        True,
    ),
    "sharding alone, in any order": (
        "for head in {heads['a'], heads['b']}:\n    fully_shard(head)\nfully_shard(heads)",
        False,
    ),
    "one name only": ("for name in {'loss'}:\n    dist.all_reduce(sums[name])", False),
    "a dictionary": ("for name in sums:\n    dist.all_reduce(sums[name])", False),
    "a sorted list": ("for name in sorted(set(sums)):\n    dist.all_reduce(sums[name])", False),
    "behind the loop": (
        "for name in set(sums):\n    print(name)\ndist.all_reduce(sums['loss'])",
        False,
    ),
    "names of others": (
        "from elsewhere import names\nfor name in set(names):\n    dist.all_reduce(sums[name])",
        False,
    ),
}


@pytest.mark.parametrize(("text", "found"), FORMS.values(), ids=FORMS)
def test_what_is_exchanged_in_the_order_of_a_set(text: str, found: bool) -> None:
    source = Source("train.py", HEAD + dedent(text) + "\n")
    assert ("FSDP420" in {one.code for one in named(list(findings([source])))}) is found
