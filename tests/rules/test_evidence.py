"""Bad fixtures of the rules show their damage on two CPU ranks, good ones show none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.evidence.client import run, run_script
from tests.evidence.header import Fixture, fixtures
from tests.evidence.judge import complaints
from tests.support.still import Still

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="evidence needs torch"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="evidence needs fork"),
]

ALL = list(fixtures())
BAD = [fixture for fixture in ALL if fixture.bad]
GOOD = [fixture for fixture in ALL if not fixture.bad]


def name_of(fixture: Fixture) -> str:
    """The test id of a fixture."""
    return fixture.name


@pytest.mark.ranks
@pytest.mark.parametrize("fixture", ALL, ids=name_of)
def test_a_fixture_shows_what_it_claims(fixture: Fixture, tmp_path: Path) -> None:
    seen = run(
        fixture.script,
        tmp_path,
        slow_saves=fixture.slow_saves,
        full_storage=fixture.full_storage,
    )
    wrong = complaints(seen, fixture.claims)
    told = "\n".join(rank.stdout + rank.stderr for rank in seen.ranks)
    assert not wrong, "\n".join([*wrong, told])


@pytest.mark.parametrize("fixture", BAD, ids=name_of)
def test_a_bad_fixture_has_a_marked_line_and_evidence(fixture: Fixture) -> None:
    assert fixture.marks("expect")
    assert fixture.claims


@pytest.mark.parametrize("fixture", GOOD, ids=name_of)
def test_a_good_fixture_says_which_line_looks_wrong(fixture: Fixture) -> None:
    assert fixture.marks("fine")
    assert not fixture.marks("expect")


@pytest.mark.ranks
@pytest.mark.parametrize(
    "claim",
    [
        "ranks drift in 2 tensors",
        'prints "bye"',
        'raises "Boom"',
        "gathers parameters 3 times per step",
        "gathers 2 units ahead of their forward per step",
        "gathers 2 whole tensors",
        "holds 8 elements at once",
        "runs 4 operations in each step of an optimizer",
        "reads 1 number out of tensors",
        "copies 2 storages into new memory",
        "waits for 1 write of a checkpoint between steps",
        "reduces gradients in bfloat16",
    ],
)
def test_a_claim_that_is_not_seen_is_a_complaint(claim: str, tmp_path: Path) -> None:
    script = tmp_path / "says.py"
    script.write_text('print("hello")\n')
    seen = run(script, tmp_path / "scratch")
    assert complaints(seen, ('prints "hello"',)) == []
    assert complaints(seen, (claim,))


def test_a_symptom_that_is_not_claimed_is_a_complaint(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text('raise ValueError("Boom")\n')
    seen = run(script, tmp_path / "scratch")
    assert complaints(seen, ('raises "ValueError: Boom"',)) == []
    assert complaints(seen, ('rank 0 raises "Boom"',)) == [
        'not claimed: rank 1 raises "ValueError: Boom"'
    ]


@pytest.mark.ranks
def test_a_rank_says_where_it_failed(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text('print("hello")\nassert False, "on purpose"\n')
    first, second = run_script(script)
    assert (first.rank, second.rank) == (0, 1)
    assert first.outcome == second.outcome == "raised"
    assert first.error == "AssertionError: on purpose"
    assert first.where == 'assert False, "on purpose"'
    assert first.stdout == "hello\n"


@pytest.mark.ranks
def test_what_waits_for_ever_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "sleeps.py"
    script.write_text("import time\ntime.sleep(600)\n")
    for rank in run_script(script):
        assert rank.outcome == "hung"
        assert rank.where == "time.sleep(600)"


@pytest.mark.ranks
def test_what_outlives_its_time_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "spins.py"
    script.write_text("while True: pass\n")
    for rank in run_script(script, timeout=3.0):
        assert rank.outcome == "hung"


@pytest.mark.skipif(sys.platform != "linux", reason="what processes do is read from /proc")
def test_who_has_only_begun_is_not_at_rest() -> None:
    with subprocess.Popen(["sleep", "600"]) as asleep:
        time.sleep(0.5)
        at_rest = Still(quiet=60).seen([asleep.pid])
        asleep.kill()
    assert not at_rest
