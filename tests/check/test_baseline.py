"""Known findings: kept in a file, matched wherever their lines stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.config.test_config import LATE
from tests.support.running import CLEAN, invoke, misconfigured

UNUSED = CLEAN + "x = 1  # fsdp2lint: ignore[FSDP203]\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "unused.py").write_text(UNUSED)
    assert invoke("check", cwd=tmp_path).returncode == 1
    shown = invoke("baseline", "create", cwd=tmp_path)
    assert shown.stdout == "fsdp2lint-baseline.json: 2 added, 0 dropped, 2 in all.\n"
    return tmp_path


def test_known_findings_do_not_count(project: Path) -> None:
    shown = invoke("check", "-f", "concise", cwd=project)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "2 findings of the baseline left out." in shown.stdout


def test_the_file_can_be_read(project: Path) -> None:
    held = json.loads((project / "fsdp2lint-baseline.json").read_text())
    assert held["version"] == 1
    assert held["findings"][0] == {
        "file": "late.py",
        "code": "FSDP201",
        "line": "optimizer = torch.optim.AdamW(model.parameters())",
        "count": 1,
    }


def test_entries_survive_moved_lines(project: Path) -> None:
    moved = '"""A docstring."""\n\n\n' + LATE.replace(
        "    optimizer =", "    y = 2\n    optimizer ="
    )
    (project / "late.py").write_text(moved)
    assert invoke("check", cwd=project).returncode == 0


def test_entries_do_not_depend_on_where_the_program_is_called(project: Path) -> None:
    (project / "sub").mkdir()
    file = "../fsdp2lint-baseline.json"
    shown = invoke("check", "..", "--baseline", file, cwd=project / "sub")
    assert (shown.returncode, shown.stderr) == (0, "")
    (project / "fsdp2lint.toml").write_text("baseline = 'fsdp2lint-baseline.json'\n")
    assert invoke("check", "..", cwd=project / "sub").returncode == 0


def test_a_new_finding_fails(project: Path) -> None:
    (project / "unused.py").write_text(UNUSED + "y = 2  # fsdp2lint: ignore[FSDP203]\n")
    shown = invoke("check", "-f", "concise", cwd=project)
    assert shown.returncode == 1
    assert shown.stdout.startswith("unused.py:7:")
    assert "Found 1 warning." in shown.stdout


def test_a_second_finding_on_an_equal_line_is_new(project: Path) -> None:
    (project / "unused.py").write_text(UNUSED + "x = 1  # fsdp2lint: ignore[FSDP203]\n")
    shown = invoke("check", "-f", "concise", cwd=project)
    assert (shown.returncode, "Found 1 warning." in shown.stdout) == (1, True)


def test_stale_entries_fail_until_they_are_pruned(project: Path) -> None:
    (project / "unused.py").write_text(CLEAN)
    shown = invoke("check", cwd=project)
    assert shown.returncode == 1
    assert "1 entry matches nothing any more (first: FSDP901 in unused.py)" in shown.stderr
    assert "`fsdp2lint baseline prune`" in shown.stderr
    assert shown.stdout.startswith("1 finding of the baseline left out.\n")
    assert "passed" not in shown.stdout, "not that all is well"
    assert "No findings" not in shown.stdout
    assert invoke("baseline", "prune", cwd=project).stdout.endswith(
        "0 added, 1 dropped, 1 in all.\n"
    )
    assert invoke("check", cwd=project).returncode == 0


def test_prune_takes_nothing_in(project: Path) -> None:
    (project / "unused.py").write_text(UNUSED + "y = 2  # fsdp2lint: ignore[FSDP203]\n")
    assert "0 added, 0 dropped" in invoke("baseline", "prune", cwd=project).stdout
    assert "1 added, 0 dropped" in invoke("baseline", "update", cwd=project).stdout
    assert invoke("check", cwd=project).returncode == 0


def test_entries_of_files_that_were_not_passed_are_not_judged(project: Path) -> None:
    (project / "unused.py").write_text(CLEAN)
    assert invoke("check", "late.py", cwd=project).returncode == 0
    assert invoke("check", "--select", "FSDP2", cwd=project).returncode == 0
    assert "0 added, 0 dropped" in invoke("baseline", "prune", "late.py", cwd=project).stdout


def test_entries_of_files_that_are_gone_are_stale(project: Path) -> None:
    (project / "unused.py").unlink()
    assert invoke("check", "late.py", cwd=project).returncode == 1


def test_less_grave_findings_keep_their_entries(project: Path) -> None:
    assert invoke("check", "--min-severity", "error", cwd=project).returncode == 0


def test_create_does_not_overwrite(project: Path) -> None:
    shown = invoke("baseline", "create", cwd=project)
    assert (shown.returncode, "exists" in shown.stderr) == (2, True)


def test_show(project: Path) -> None:
    assert invoke("baseline", "show", cwd=project).stdout.splitlines() == [
        "late.py: FSDP201: optimizer = torch.optim.AdamW(model.parameters())",
        "unused.py: FSDP901: x = 1  # fsdp2lint: ignore[FSDP203]",
    ]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"{", "no baseline"),
        (b'{"version": 1, "findings": [{"file": 1}]}', "no baseline"),
        (b'{"version": 9, "findings": []}', "is of version 9"),
        (b"\xff\xfe", "no baseline"),
    ],
)
def test_a_broken_baseline(project: Path, raw: bytes, said: str) -> None:
    (project / "fsdp2lint-baseline.json").write_bytes(raw)
    (line,) = misconfigured(project)
    assert line.startswith(f"fsdp2lint-baseline.json:1: {said}")
    shown = invoke("check", "--baseline", "fsdp2lint-baseline.json", cwd=project)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"Error: fsdp2lint-baseline.json: {said}")


def test_a_baseline_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(CLEAN)
    shown = invoke("check", "--baseline", "gone.json", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (2, "Error: gone.json: No such file or directory\n")
    assert invoke("baseline", "prune", cwd=tmp_path).returncode == 2


def test_a_file_that_cannot_be_analysed_is_never_known(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("import torch.distributed.fsdp\nf(\n")
    invoke("baseline", "create", cwd=tmp_path)
    assert invoke("check", cwd=tmp_path).returncode == 1


def test_sarif_says_that_they_are_known(project: Path) -> None:
    shown = invoke("check", "-f", "sarif", cwd=project)
    (run,) = json.loads(shown.stdout)["runs"]
    kinds = [result["suppressions"] for result in run["results"]]
    assert kinds == [[{"kind": "external", "status": "accepted"}]] * 2
