"""Whole FSDP1 programs, what ``migrate`` makes of them, and their hand-made FSDP2 counterparts: equal, and different where a
fault is planted.

Each folder of ``fixtures/projects`` with a ``run.toml`` is a project: how it is run, how it saves and goes
on, and the faults that make it differ, with the step at which they do.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsdp2lint.prove.compare import Options, Trial, Verification
from fsdp2lint.prove.places import Place, find
from fsdp2lint.rehearse.results import Difference
from tests.support.migrated import migrated, written

from .scenes import ROOT, Ranks, forking

pytestmark = pytest.mark.ranks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECTS = ROOT / "fixtures" / "projects"
NAMES = sorted(path.parent.name for path in PROJECTS.glob("*/run.toml"))

Plan = dict[str, Any]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with forking() as serving:
        yield serving


def trial(plan: Plan, before: Place, ranks: Ranks, which: str) -> Trial:
    """A trial of the run with the arguments, or of the resumed one."""
    from fsdp2lint.prove.equality import apart

    resume = plan["resume"]
    options = Options(
        tuple(plan["args"]),
        plan["nproc"],
        timeout=600.0,
        rtol=plan["rtol"],
        resume=(tuple(resume["save"]), tuple(resume["continue"])) if which == "resume" else None,
    )
    return Trial(before, options, run=ranks.launch, compare=apart.main)


def project(name: str) -> tuple[Plan, Place, Place]:
    """How a project is run, and both programs."""
    plan = tomllib.loads((PROJECTS / name / "run.toml").read_text("utf-8"))
    sides = [find(str(PROJECTS / name / side), entry=plan["entry"]) for side in ("before", "after")]
    return plan, sides[0], sides[1]


def made_by_the_tool(name: str, plan: Plan, folder: Path) -> Place:
    """The original as ``migrate`` rewrites it, without a hand edit."""
    made = written(migrated(name), PROJECTS / name / "before", folder / "migrated")
    return find(str(made), entry=plan["entry"])


def planted(name: str, plan: Plan, fault: Plan, folder: Path) -> Place:
    """The migrated program with a fault."""
    copy = folder / fault["name"]
    shutil.copytree(PROJECTS / name / "after", copy)
    file = copy / fault["file"]
    text = file.read_text("utf-8")
    assert text.count(fault["old"]) == 1, fault["name"]
    file.write_text(text.replace(fault["old"], fault["new"]), encoding="utf-8")
    return find(str(copy), entry=plan["entry"])


def expect_equal(verification: Verification, steps: int) -> None:
    """Everything is the same, over as many steps as the project makes."""
    assert verification.fault is None, [r.error for r in _failed(verification)]
    assert [d.message for d in verification.differences if _counts(d, verification)] == []
    assert {len(rank.steps) for rank in verification.before.run.ranks} == {steps}
    assert next(c for c in verification.compared if c.what == "parameters").count > 0
    for run in (verification.before, verification.after):
        assert run is not None
        assert [violation.message for violation in run.violations] == []


def _counts(difference: Difference, verification: Verification) -> bool:
    """Where even losses agree to three places only, Adam soon takes the weights apart."""
    return verification.rtol < 1e-4 or difference.step is not None


def _failed(verification: Verification) -> Any:
    return (verification.after or verification.before).run.ranks


@pytest.mark.parametrize("name", NAMES)
def test_a_migrated_program_does_the_same_and_a_fault_shows(
    name: str, ranks: Ranks, tmp_path: Path
) -> None:
    plan, before, after = project(name)
    with trial(plan, before, ranks, "args") as runs:
        expect_equal(runs.against(after), plan["steps"])
        expect_equal(runs.against(made_by_the_tool(name, plan, tmp_path)), plan["steps"])
        for fault in faults(plan, "args"):
            found = runs.against(planted(name, plan, fault, tmp_path))
            if fault["differs"]["what"] == "raises":
                assert found.fault == "AFTER"
            else:
                expect_at(found, fault["differs"])


@pytest.mark.parametrize("name", NAMES)
def test_an_old_checkpoint_goes_on_in_the_migrated_program(
    name: str, ranks: Ranks, tmp_path: Path
) -> None:
    plan, before, after = project(name)
    with trial(plan, before, ranks, "resume") as runs:
        steps = plan["resume"]["steps"]
        expect_equal(runs.against(after), steps)
        expect_equal(runs.against(made_by_the_tool(name, plan, tmp_path)), steps)
        for fault in faults(plan, "resume"):
            expect_at(runs.against(planted(name, plan, fault, tmp_path)), fault["differs"])


def faults(plan: Plan, run: str) -> list[Plan]:
    """Those that running shows; what only the plan shows is not for here."""
    shown = ("loss", "norm", "rate", "value", "checkpoint", "raises")
    return [
        fault
        for fault in plan.get("faults", ())
        if fault["differs"]["run"] == run and fault["differs"]["what"] in shown
    ]


def expect_at(verification: Verification, differs: Plan) -> None:
    """The first difference is of its kind, at its step."""
    assert verification.fault is None, [r.error for r in _failed(verification)]
    found: dict[str, Difference] = {d.kind: d for d in verification.differences}
    assert differs["what"] in found, found
    assert found[differs["what"]].step == differs.get("step")
