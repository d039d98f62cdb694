"""What the rules offer as fixes is what the catalogue promises, and some fixture shows it."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path

import pytest

from fsdp2lint.catalogue.declare import Rule
from tests.support.mending import found_in_bad_fixtures, rules
from tests.support.running import TOUR, program

SAFE = """
    FSDP203 FSDP206 FSDP208 FSDP209 FSDP218 FSDP219 FSDP224 FSDP228 FSDP229 FSDP230 FSDP234 FSDP235
    FSDP241 FSDP250 FSDP254 FSDP255 FSDP256 FSDP302 FSDP304 FSDP308 FSDP309 FSDP312 FSDP320 FSDP321
    FSDP238 FSDP243 FSDP248 FSDP262 FSDP325 FSDP403 FSDP404 FSDP408 FSDP410 FSDP413 FSDP415
    FSDP604
"""
UNSAFE = """
    FSDP201 FSDP202 FSDP204 FSDP205 FSDP207 FSDP214 FSDP215 FSDP220 FSDP222 FSDP226 FSDP227 FSDP231
    FSDP240 FSDP242 FSDP246 FSDP247 FSDP249 FSDP251 FSDP252 FSDP301 FSDP303 FSDP306 FSDP307 FSDP310 FSDP313 FSDP314
    FSDP318 FSDP319 FSDP322 FSDP324 FSDP327 FSDP328 FSDP330 FSDP401 FSDP406 FSDP416 FSDP420
    FSDP501 FSDP510 FSDP511 FSDP602 FSDP603 FSDP605 FSDP614
"""
EITHER = "FSDP210 FSDP216 FSDP405 FSDP417"
ONLY_UNSAFE = {
    "FSDP218": "every rank must reach the `full_tensor` that comes in",
    "FSDP229": "the branch behind `isinstance` was dead so far",
    "FSDP235": "a checkpoint that holds the scalar does not load any more",
    "FSDP250": "the memory that comes in has no values, which must come from somewhere",
    "FSDP302": "checkpoints that were written before have the old keys",
    "FSDP403": "the script ran before, and ranks change their places",
    "FSDP404": "the script ran before, and parameters are sharded over fewer ranks",
    "FSDP410": "the script ran before, and the order of its data changes",
}
"""Rules whose fix was to be safe and is not, and why."""


def promised(rule: Rule) -> set[str]:
    """The safeties that the fixes of a rule may have."""
    if rule.code in EITHER.split():
        return {"safe", "unsafe"}
    if rule.code in UNSAFE.split() or rule.code in ONLY_UNSAFE:
        return {"unsafe"}
    return {"safe"} if rule.code in SAFE.split() else set()


@cache
def offered(rule: Rule) -> set[str]:
    """The safeties of the fixes that a rule offers for its bad fixtures."""
    return {one.fix.safety for one in found_in_bad_fixtures(rule) if one.fix is not None}


every_rule = pytest.mark.parametrize("rule", rules().values(), ids=lambda rule: rule.name)


@every_rule
def test_a_rule_offers_what_the_catalogue_promises(rule: Rule) -> None:
    assert offered(rule) <= promised(rule)
    if promised(rule) == {"safe"}:
        assert offered(rule), "its fix is safe, and no fixture gets it"


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
