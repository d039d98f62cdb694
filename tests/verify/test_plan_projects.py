"""Whole programs, their counterparts by hand and by the tool: the same groups on eight ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fsdp2lint.verify.ladder import Rung
from fsdp2lint.verify.places import find
from fsdp2lint.verify.plan import climbed
from fsdp2lint.verify.plan.errand import Answer
from tests.migrated import migrated, settings, written

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = sorted(p.parent for p in (ROOT / "fixtures" / "projects").glob("*/after"))
SIDES = ("after", "migrated")
WORLD = 8


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plans")
    wanted = []
    for project in PROJECTS:
        entry = settings(project.name)["entry"]
        ours = written(migrated(project.name), project / "before", folder / project.name)
        for side, place in (
            ("before", project / "before"),
            ("after", project / "after"),
            ("migrated", ours),
        ):
            script = find(str(place), entry=entry, module=None).target
            wanted.append(f"{WORLD}:{project.name}-{side}={script}")
    command = [sys.executable, "-m", "tests.verify.planned", str(folder), *wanted]
    subprocess.run(command, cwd=ROOT, check=True, timeout=560)
    return folder


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_the_groups_are_the_units(answers: Path, project: Path, side: str) -> None:
    before, after = (
        msgspec.json.decode(
            (answers / f"{project.name}-{one}" / "answer.json").read_bytes(), type=Answer
        )
        for one in ("before", side)
    )
    assert before.complete, before.error
    assert after.complete, after.error
    count = len(list(after.plan.units))
    units = f"the same {count} unit{'s' if count > 1 else ''}"
    assert climbed(before.plan, after.plan) == Rung(2, "reached", f"{units} on {WORLD} ranks")
