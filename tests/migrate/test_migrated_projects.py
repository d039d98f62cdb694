"""Whole FSDP1 programs after ``migrate``: nothing lost, nothing to complain about, and they go on from their checkpoints.

The programs are ``fixtures/projects/*/before`` (see the README there); the tool migrates them without a hand edit. That they do
the same is compared beside the hand-made programs, in ``tests/verify/test_verify_projects.py``: the originals run once for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from fsdp2lint.prove.compare import Options, Trial
from fsdp2lint.prove.places import find
from fsdp2lint.rehearse.launch import launch
from tests.support.migrated import NAMES, PROJECTS, migrate_folder, migrated, settings, written
from tests.verify.scenes import Ranks, forking

pytestmark = pytest.mark.ranks

EACH = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with forking() as serving:
        yield serving


@EACH
def test_everything_is_accounted_for_and_nothing_is_left(name: str) -> None:
    made = migrated(name)
    assert made.failures == []
    ledger = made.ledger
    assert sum(ledger.sums.values()) == len(ledger.entries)
    assert ledger.complete
    left = [f"{e.path}:{e.line} {e.symbol}: {e.why}" for e in ledger.manual]
    assert left == []


@EACH
def test_the_migrated_program_is_quiet_under_check(name: str) -> None:
    said = [f"{rule.code} {finding.message}" for rule, finding in migrated(name).remaining]
    assert said == []


@EACH
def test_every_file_compiles_and_migrating_again_changes_nothing(name: str, tmp_path: Path) -> None:
    folder = written(migrated(name), PROJECTS / name / "before", tmp_path)
    for path in folder.rglob("*.py"):
        compile(path.read_bytes(), str(path), "exec")
    assert migrate_folder(folder).changed == []


@pytest.mark.skipif(find_spec("torch") is None, reason="running needs torch")
def test_under_torchrun_it_does_the_same(tmp_path: Path) -> None:
    """As ``verify`` starts programs for a user; the others are compared on forked ranks."""
    from fsdp2lint.prove.equality import apart

    name = "captioner"
    told, before = settings(name), PROJECTS / name / "before"
    after = written(migrated(name), before, tmp_path)
    options = Options(tuple(told["args"]), nproc=told["nproc"], rtol=told["rtol"])
    places = [find(str(side), entry=told["entry"]) for side in (before, after)]
    with Trial(places[0], options, run=launch, compare=apart.main) as trial:
        done = trial.against(places[1])
    assert done.fault is None
    assert [one.message for one in done.differences] == []


@pytest.mark.skipif(find_spec("torch") is None, reason="running needs torch")
@EACH
def test_it_goes_on_from_its_own_checkpoint(name: str, ranks: Ranks, tmp_path: Path) -> None:
    """In two parts, with a checkpoint between them, it does what it does at a stretch, bit for bit."""
    from tests.support.continuing import different_ends, different_steps, run

    told = settings(name)
    after = written(migrated(name), PROJECTS / name / "before", tmp_path)
    place = find(str(after), entry=told["entry"])
    resume, nproc, forked = told["resume"], told["nproc"], ranks.launch
    first, second = tmp_path / "first", tmp_path / "second"
    whole = run(place, told["args"], nproc, tmp_path / "whole", forked)
    saved = run(place, resume["save"], nproc, first, forked)
    resumed = run(place, resume["continue"], nproc, second, forked, goes_on_from=first)
    runs = whole, saved, resumed
    assert [one.run.errors for one in runs if not one.completed] == []
    counts = told["steps"], told["steps"] - told["resume"]["steps"], told["resume"]["steps"]
    assert tuple(len(one.run.ranks[0].steps) for one in runs) == counts
    assert [one.message for one in different_steps(*runs)] == []
    if "otherwise" not in resume:
        # a checkpoint holds one rank's statistics: those of the others begin anew
        ends = [one.message for one in different_ends(whole, resumed)]
        assert [end for end in ends if not _STATISTICS.search(end)] == []


_STATISTICS = re.compile(r"(running_mean|running_var|num_batches_tracked) on rank [1-9]")
