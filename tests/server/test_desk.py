"""The analysis behind the language server: what is typed, stopped, and not done twice."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fsdp2lint.check import analysis
from fsdp2lint.check.analysis import Analysis
from fsdp2lint.check.diagnostics import Report
from fsdp2lint.check.in_documents import changes
from fsdp2lint.server.app.desk import Desk, Stopped, saved
from fsdp2lint.source.source import Source
from tests.cli.test_git import HELPER, TRAIN
from tests.config.test_config import LATE


def test_an_analysis_stops_when_it_is_told(tmp_path: Path) -> None:
    desk, stop = Desk(), threading.Event()
    buffers = {str(tmp_path / "late.py"): LATE.encode()}
    stop.set()
    with pytest.raises(Stopped):
        desk.check(buffers, stop)
    stop.clear()
    assert [one.rule.code for one in desk.check(buffers, stop)] == ["FSDP201"]


def test_what_has_not_changed_is_not_analysed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the file that was typed in, and those that depend on it."""
    analysed: list[str] = []
    plain = analysis.reports

    def counting(every: Sequence[Analysis], *rest: Any) -> list[Report]:
        analysed.extend(os.path.basename(source.path) for source in every[0].sources)
        return plain(every, *rest)

    monkeypatch.setattr(analysis, "reports", counting)
    (tmp_path / "helper.py").write_text(HELPER)
    train = str(tmp_path / "train.py")
    other, helper = str(tmp_path / "other.py"), str(tmp_path / "helper.py")
    desk, stop = Desk(), threading.Event()

    def check(**texts: str) -> list[str]:
        analysed.clear()
        now = {"train": TRAIN.format(module="helper"), "other": LATE} | texts
        names = {"train": train, "other": other, "helper": helper}
        found = desk.check({names[k]: text.encode() for k, text in now.items()}, stop)
        assert len(found) == 2
        return sorted(set(analysed))

    assert check() == ["other.py", "train.py"]
    assert check() == []
    assert check(other=LATE + "MORE = 1\n") == ["other.py"]
    assert check(helper=HELPER + "MORE = 1\n") == ["helper.py", "train.py"], "which calls it"
    assert check() == [], "what was there before is still known"
    (tmp_path / "helper.py").write_text(HELPER + "ON_DISK = 1\n")
    assert check() == ["train.py"]


def test_changes_are_as_small_as_the_lines_that_differ() -> None:
    old = "".join(f"{n}\n" for n in range(1000))
    new = old.replace("7\n8\n", "7\nseven\n8\n", 1).replace("990\n", "")
    made = [(s.start, s.end, s.text) for _, s in changes(Source("x", old), Source("x", new))]
    first, last = old.index("8\n"), old.index("990\n")
    assert made == [(first, first, "seven\n"), (last, last + 4, "")]


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("é", "é".encode()),
        ("# coding: latin-1\né", "# coding: latin-1\né".encode("latin-1")),
        ("# coding: ascii\né", "# coding: ascii\né".encode()),
        ("# coding: nothing\né", "# coding: nothing\né".encode()),
    ],
)
def test_a_buffer_is_read_in_the_encoding_that_it_names(text: str, raw: bytes) -> None:
    assert saved(text) == raw


def test_a_wrong_configuration_spoils_no_other_folder(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    buffers = {str(tmp_path / name / "late.py"): LATE.encode() for name in ("one", "other")}
    config = tmp_path / "one" / "fsdp2lint.toml"
    desk, stop = Desk(), threading.Event()
    for text, said in (("selct = []\n", "unknown key"), ("select = ['X']\n", "unknown rule")):
        config.write_text(text)
        assert len(desk.check(buffers, stop)) == 2
        assert said in desk.wrong
        assert desk.fixed(buffers, str(tmp_path / "one" / "late.py"), stop) == []
    config.unlink()
    assert len(desk.check(buffers, stop)) == 2
    assert desk.wrong == ""
