"""The fixtures of the rules as the program sees them: what it says of one and what its fixes make of it."""

from __future__ import annotations

from functools import cache

from fsdp2lint.catalogue import knowledge
from fsdp2lint.catalogue.declare import Rule
from fsdp2lint.check import runner
from fsdp2lint.check.runner import Batch, Mended
from fsdp2lint.config.settings import Settings
from fsdp2lint.source.reading import decode
from tests.evidence.header import Fixture, fixtures
from tests.support.launching import launched


@cache
def rules() -> dict[str, Rule]:
    """The rules by the folder of their fixtures."""
    return {rule.name.replace("-", "_"): rule for rule in knowledge.rules()}


def bad_fixtures() -> list[Fixture]:
    """The bad fixtures of all rules."""
    return [f for f in fixtures() if f.bad and f.path.parent.name in rules()]


def rule_of(fixture: Fixture) -> Rule:
    """The rule that must speak of a fixture."""
    return rules()[fixture.path.parent.name]


def mended(copy: Fixture, rule: Rule) -> Mended:
    """A copy of a fixture after the safe and unsafe fixes of one rule; nothing is written."""
    sources = [decode(file.read_bytes(), str(file)) for file in copy.files]
    settings = _only(rule)._replace(hints=launched(sources))
    return runner.mend(_batch(copy), settings, unsafe=True)


def _only(rule: Rule) -> Settings:
    return Settings(select=(rule.code,), target_torch=rule.since, preview=True)


def _batch(fixture: Fixture) -> Batch:
    return Batch.of_files([str(file) for file in fixture.files])
