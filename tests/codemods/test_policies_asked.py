"""Policies that stay beside a wrapper that stays, and policies that name the layers by a method of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import Migration, migrate
from fsdp2lint.source.reading import read
from fsdp2lint.source.source import Source

CASE = Path(__file__).parents[2] / "fixtures/codemods/fsdp_constructor/policies_asked/before"
POLICIES = (
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
    "_or_policy",
    "ModuleWrapPolicy",
)


def of_policies(done: Migration) -> list[tuple[str, str]]:
    """What became of the policies that the text still names, imports apart."""
    return [
        (entry.symbol, entry.fate)
        for entry in done.ledger.entries
        if entry.symbol in POLICIES and entry.kind == "symbol" and entry.at is not None
    ]


def test_a_second_migration_leaves_policies_that_the_first_has_kept() -> None:
    sources = [read(path) for path in sorted(CASE.glob("*.py"))]
    first = migrate(sources, knowledge.codemods(), [CASE])
    second = migrate(first.after, knowledge.codemods(), [CASE])
    assert second.changed == []
    for done in (first, second):  # one call cannot be rewritten, so its model stays FSDP1 whole
        assert {symbol for symbol, fate in of_policies(done) if fate == "manual"} == set(POLICIES)
    # again.py has nothing to do with that model: the policy that it hands on is a plain function now
    assert {fate for _, fate in of_policies(second)} == {"manual", "preserved"}
    kept = {e.symbol for e in second.ledger.entries if e.fate == "preserved"}
    assert kept >= {"size_based_auto_wrap_policy", "transformer_auto_wrap_policy"}  # their imports


GIVEN = """\
import functools

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.refiner = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def wrapped(self):
        return {given}


def shard(model):
    policy = functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in model.wrapped())
    return FSDP(model, auto_wrap_policy=policy, device_id=0)


shard(Net())
"""


@pytest.mark.parametrize(
    ("given", "loop"),
    [
        ("list(self.layers)", "for layer in model.wrapped():"),
        ("[*self.layers, *self.refiner]", "for layer in model.wrapped():"),
        ("list(self.refiner) + list(self.layers)", "for layer in model.wrapped():"),
        ("[self.layers[0], *self.layers]", "for module in reversed(list(model.modules())):"),
        ("[*self.layers, *self.layers.children()]", "for module in reversed("),
    ],
)
def test_a_method_that_gives_the_layers(given: str, loop: str) -> None:
    made = migrate((Source("train.py", GIVEN.format(given=given)),), knowledge.codemods())
    assert made.failures == []
    assert loop in made.after[0].text
