"""What the fixes of a rule make of its bad fixtures runs on two CPU ranks without damage."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint.check import fixing
from tests.evidence.client import run
from tests.evidence.header import Fixture
from tests.evidence.judge import complaints
from tests.support.mending import bad_fixtures, mended, rule_of
from tests.support.running import TOUR, program

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(find_spec("torch") is None, reason="evidence needs torch"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="evidence needs fork"),
]

FIXABLE = [f for f in bad_fixtures() if rule_of(f).section("Fix safety")]


@pytest.mark.parametrize("fixture", FIXABLE, ids=lambda fixture: fixture.name)
def test_a_fixed_fixture_shows_no_damage(fixture: Fixture, tmp_path: Path) -> None:
    """Where a finding has a fix; where none has, that is what must be seen."""
    copy = fixture.copied(tmp_path / "fixed")
    after = mended(copy, rule_of(fixture))
    assert not after.report.refused
    if not after.changed:
        assert after.report.found
        assert all(found.fix is None for found in after.report.found)
        return
    fixing.write(after.changed)
    seen = run(copy.script, tmp_path / "scratch", slow_saves=copy.slow_saves)
    told = "\n".join([after.diff, *(rank.stdout + rank.stderr for rank in seen.ranks)])
    assert complaints(seen, ()) == [], told
    assert complaints(seen, fixture.claims) or not fixture.shown, f"as before the fix\n{told}"


def test_the_fixed_tour_trains(tmp_path: Path) -> None:
    shutil.copytree(TOUR, tmp_path / "tour")
    program("check", "tour", "--fix", "--unsafe-fixes", cwd=tmp_path)
    seen = run(tmp_path / "tour" / "train.py", tmp_path / "scratch", arguments=("--steps=2",))
    told = "\n".join(rank.stdout + rank.stderr for rank in seen.ranks)
    assert complaints(seen, ()) == [], told
