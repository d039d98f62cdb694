"""What the rules offer as fixes is what their pages promise, and some fixture shows it."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import pytest

from fsdp2lint.catalogue.declare import Rule
from tests.rules.test_rules import CASES
from tests.support.mending import rules
from tests.support.running import TOUR, program


@cache
def offered(rule: Rule) -> set[str]:
    """The safeties of the fixes that a rule offers for its bad fixtures."""
    folder = f"{rule.name.replace('-', '_')}/bad_"
    said = [found for case in CASES if case.name.startswith(folder) for found in case.seen()[1]]
    return {one.fix.safety for by, one in said if by is rule and one.fix is not None}


every_rule = pytest.mark.parametrize("rule", rules().values(), ids=lambda rule: rule.name)


@every_rule
def test_a_rule_that_explains_a_fix_has_a_fixture_that_gets_it(rule: Rule) -> None:
    assert bool(offered(rule)) == bool(rule.section("Fix safety"))


NOT_HERE = {"FSDP413": {"unsafe"}}
"""Fixes that no fixture gets, since what they make needs a device."""


@every_rule
def test_a_rule_declares_how_safe_the_fixes_of_its_fixtures_are(rule: Rule) -> None:
    seen = offered(rule) | NOT_HERE.get(rule.code, set())
    assert rule.fix == ("sometimes-safe" if len(seen) > 1 else next(iter(seen), None))


def test_all_fixes_leave_of_the_tour_what_has_none(tmp_path: Path) -> None:
    shutil.copytree(TOUR, tmp_path / "tour")
    fixed = program("check", "tour", "--fix", "--unsafe-fixes", "-f", "json", cwd=tmp_path)
    left = json.loads(fixed.stdout)
    assert fixed.returncode == (1 if left else 0), fixed.stderr
    assert [one["code"] for one in left if one["fix"] is not None] == []
    again = program("check", "tour", "-f", "json", cwd=tmp_path)
    assert json.loads(again.stdout) == left
