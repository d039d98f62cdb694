"""What the fixes of a rule make of its bad fixtures runs on two CPU ranks without damage."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint import fixing, knowledge
from fsdp2lint.declare import Rule
from fsdp2lint.runner import Batch, mend
from fsdp2lint.settings import Settings
from tests.evidence.client import run
from tests.evidence.header import Fixture, fixtures
from tests.evidence.judge import complaints

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="evidence needs torch"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="evidence needs fork"),
]


@cache
def rules() -> dict[str, Rule]:
    """The rules by the folder of their fixtures."""
    return {rule.name.replace("-", "_"): rule for rule in knowledge.rules()}


def rule_of(fixture: Fixture) -> Rule:
    """The rule whose fixture this is."""
    return rules()[fixture.path.parent.name]


FIXABLE = [f for f in fixtures() if f.bad and rule_of(f).section("Fix safety")]


@pytest.mark.parametrize("fixture", FIXABLE, ids=lambda fixture: fixture.name)
def test_a_fixed_fixture_shows_no_damage(fixture: Fixture, tmp_path: Path) -> None:
    copy = fixture.copied(tmp_path / "fixed")
    only_this = Settings(select=(rule_of(fixture).code,))
    mended = mend(Batch.of_files([str(file) for file in copy.files]), only_this, unsafe=True)
    assert not mended.report.refused
    if not mended.changed:
        pytest.skip("no finding here has a fix")
    fixing.write(mended.changed)
    seen = run(copy.script, tmp_path / "scratch", slow_saves=copy.slow_saves)
    told = "\n".join([mended.diff, *(rank.stdout + rank.stderr for rank in seen.ranks)])
    assert complaints(seen, ()) == [], told
    assert complaints(seen, fixture.claims) or not fixture.shown, f"as before the fix\n{told}"
