"""Units, and several processes: what belongs together, and the same bytes whatever ``-j``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from fsdp2lint.check import runner
from fsdp2lint.check.context import Means
from fsdp2lint.check.runner import Batch, check, processes
from fsdp2lint.check.units import units
from fsdp2lint.system.files import Files
from tests.cli.test_git import HELPER, TRAIN
from tests.config.test_config import LATE
from tests.support.running import CLEAN, invoke

PROJECTS = 5


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    """Several small projects beside each other, each with a program and a helper."""
    for number in range(PROJECTS):
        folder = tmp_path / f"p{number}"
        folder.mkdir()
        (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
        (folder / "train.py").write_text(TRAIN.format(module="helper") + "# \n" * number)
        (folder / "helper.py").write_text(HELPER + "x = 1  # fsdp2lint: ignore[FSDP203]\n")
    (tmp_path / "broken.py").write_text("import torch.distributed.fsdp\nf(\n")
    return tmp_path


def planned(folder: Path, *named: str) -> list[tuple[list[str], list[str]]]:
    paths = sorted(str(p.relative_to(folder)) for p in folder.rglob("*.py"))
    here = os.getcwd()
    os.chdir(folder)
    try:
        batch = Batch.of_files(paths, named)
        made = units(batch.passed, batch.relevant, batch.named, [folder], Files())
    finally:
        os.chdir(here)
    return [([p for p, _ in u.asked], [p for p, _ in u.programs]) for u in made]


def test_files_that_import_each_other_belong_together(projects: Path) -> None:
    assert planned(projects) == [
        (["broken.py"], []),
        *(([f"p{n}/helper.py", f"p{n}/train.py"], []) for n in range(PROJECTS)),
    ]


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("def main():\n    x.train()\n", False),
        ("__all__ = ['x']\nLOG = get_logger(__name__)\n", False),
        ("try:\n    import y\nexcept ImportError:\n    y = None\n", False),
        ("x.train()\n", True),
        ("for step in range(3):\n    x.train(step)\n", True),
        ("if cfg.train:\n    pass\nelse:\n    x.train()\n", True),
        ("try:\n    pass\nexcept ValueError:\n    x.train()\n", True),
        ("if __name__ == '__main__': ...\n", True),
        ("print 'a program of Python 2'\n", True),
    ],
)
def test_only_what_acts_is_run(tmp_path: Path, text: str, runs: bool) -> None:
    """Of the files that import a relevant one, a library brings nothing: nobody runs it."""
    (tmp_path / "x.py").write_text(CLEAN)
    (tmp_path / "other.py").write_text("import x  # trained\n" + text)
    assert planned(tmp_path) == [(["x.py"], ["other.py"] if runs else [])]


def test_a_shared_import_joins_nothing(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text("import torch\n")
    for name in "ab":
        (tmp_path / f"{name}.py").write_text("import common\n" + CLEAN)
    assert planned(tmp_path) == [(["a.py"], []), (["b.py"], [])]
    (tmp_path / "common.py").write_text("import torch, a\n")
    assert planned(tmp_path) == [(["a.py", "b.py"], [])]


def test_a_program_joins_what_it_imports(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.py").write_text(CLEAN)
    (tmp_path / "main.py").write_text("import torch\nimport a\nimport b\ntrain(b.model)\n")
    assert planned(tmp_path) == [(["a.py", "b.py"], ["main.py"])]


@pytest.mark.parametrize("format_", ["full", "json", "sarif"])
def test_the_same_bytes(projects: Path, monkeypatch: pytest.MonkeyPatch, format_: str) -> None:
    monkeypatch.setattr(runner, "WORTH_A_PROCESS", 0)
    used: list[int] = []
    plain = processes.in_processes

    def noting(work: object, given: Sequence[object], *more: object) -> object:
        used.append(len(given))
        return plain(work, given, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(processes, "in_processes", noting)
    texts = {
        invoke("check", "-n", "-f", format_, f"-j{jobs}", cwd=projects).stdout for jobs in (1, 2, 8)
    }
    assert len(texts) == 1
    assert used == [PROJECTS + 1] * 2
    (text,) = texts
    assert text.count("FSDP201") >= PROJECTS


def test_small_runs_stay_in_one_process(projects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "in_processes", None)
    invoke("check", "-n", "-j8", cwd=projects)


def test_a_process_that_dies_costs_nothing(projects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WORTH_A_PROCESS", 0)
    parent, plain = os.getpid(), runner._Check.result

    def dying(self: runner._Check, unit: object) -> object:
        if os.getpid() != parent:
            os._exit(9)
        return plain(self, unit)  # type: ignore[arg-type]

    expected = [d.rule.code for d in check(_batch(projects)).found]
    monkeypatch.setattr(runner._Check, "result", dying)
    assert [d.rule.code for d in check(_batch(projects), means=Means(jobs=2)).found] == expected


def test_processes_that_are_not_forked(projects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows: everything that they need has to be sent."""
    monkeypatch.setattr(runner, "WORTH_A_PROCESS", 0)
    expected = invoke("check", "-n", "-j1", cwd=projects).stdout
    monkeypatch.setattr(processes, "METHOD", "spawn")
    assert invoke("check", "-n", "-j2", cwd=projects).stdout == expected
    assert invoke("check", "-j2", cwd=projects).stdout == expected


def test_fixes_across_processes(projects: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WORTH_A_PROCESS", 0)
    shown = invoke("check", "-n", "-j2", "--fix", "-f", "concise", cwd=projects)
    assert f"Fixed {PROJECTS} findings." in shown.stdout
    assert all(
        (projects / f"p{n}" / "helper.py").read_text() == HELPER + "x = 1\n"
        for n in range(PROJECTS)
    )


def test_one_finding_of_two_units_is_said_once(tmp_path: Path) -> None:
    """``common.py`` is passed and imported by two programs that have nothing else in common."""
    (tmp_path / "common.py").write_text(
        HELPER.replace("fully_shard", "wrap").replace("wrap(", "fsdp(")
    )
    for name in "ab":
        (tmp_path / f"{name}.py").write_text(LATE)
    shown = invoke("check", "-f", "concise", cwd=tmp_path)
    assert shown.stdout.count("FSDP201") == 2


def _batch(folder: Path) -> Batch:
    return Batch.of_files(sorted(map(str, folder.rglob("*.py"))))
