"""Whole programs, their counterparts by hand and by the tool: the same groups on eight ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fsdp2lint.plan.errand import Answer
from fsdp2lint.prove.ladder import Rung
from fsdp2lint.prove.places import find
from fsdp2lint.prove.planning import climbed
from tests.support.migrated import migrated, settings, written

from .scenes import ROOT, Server, serving

pytestmark = pytest.mark.ranks

PROJECTS = sorted(p.parent for p in (ROOT / "fixtures" / "projects").glob("*/after"))
WORLD = 8


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("planned") as planning:
        yield planning


def answer(server: Server, folder: Path, place: Path, entry: str) -> Answer:
    """The plan of one of the programs."""
    script = find(str(place), entry=entry, module=None).target
    server.ask(json.dumps([str(folder), WORLD, script]))
    return msgspec.json.decode((folder / "answer.json").read_bytes(), type=Answer)


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_the_groups_are_the_units(server: Server, tmp_path: Path, project: Path) -> None:
    entry = settings(project.name)["entry"]
    ours = written(migrated(project.name), project / "before", tmp_path)
    before = answer(server, tmp_path / "old", project / "before", entry)
    assert before.complete, before.error
    for name, place in (("by_hand", project / "after"), ("by_tool", ours)):
        after = answer(server, tmp_path / name, place, entry)
        assert after.complete, after.error
        count = len(list(after.plan.units))
        units = f"the same {count} unit{'s' if count > 1 else ''}"
        assert climbed(before.plan, after.plan) == Rung(2, "reached", f"{units} on {WORLD} ranks")
