"""Some of the bits of :mod:`tests.faults.bits`; all of them are one command there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.system.home import SECRET
from tests.faults.bits import flip, kinds, report


def test_no_flipped_bit_changes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (project := tmp_path / "project").mkdir()
    every_kind = kinds(project)
    assert every_kind.keys() == {
        "files",
        "plan",
        "rules",
        "unit",
    }  # what the cache is asked to keep
    wanted = report(project)
    assert "FSDP201" in wanted
    every = list(flip(project, wanted, every=401, check=2_000))
    kept = {one.name for one in every}
    assert all(names <= kept for names in every_kind.values())
    assert kept - set().union(*every_kind.values()) == {SECRET}
    assert [line for one in every for line in one.bad] == []
