"""Policies that stay beside a wrapper that stays: the first migration and the second say the same of them."""

from __future__ import annotations

from pathlib import Path

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import Migration, migrate
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
    sources = [Source.read(path) for path in sorted(CASE.glob("*.py"))]
    first = migrate(sources, knowledge.codemods(), [CASE])
    second = migrate(first.after, knowledge.codemods(), [CASE])
    assert second.changed == []
    for done in (first, second):  # one call cannot be rewritten, so its model stays FSDP1 whole
        assert {symbol for symbol, fate in of_policies(done) if fate == "manual"} == set(POLICIES)
    assert {fate for _, fate in of_policies(second)} == {"manual"}
    kept = {e.symbol for e in second.ledger.entries if e.fate == "preserved"}
    assert kept >= {"size_based_auto_wrap_policy", "transformer_auto_wrap_policy"}  # their imports
