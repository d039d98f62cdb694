"""Some of the bits of :mod:`tests.faults.bits`; all of them are one command there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.bits import fill, flip


def test_no_flipped_bit_changes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (project := tmp_path / "project").mkdir()
    wanted = fill(project)
    assert "FSDP201" in wanted
    every = list(flip(project, wanted, every=401, check=2_000))
    assert {one.name.partition("-")[0] for one in every} > {"files", "rules", "secret"}
    assert len(every) >= 5  # a plan and a report besides
    assert [line for one in every for line in one.bad] == []
