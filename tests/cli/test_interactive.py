"""``--interactive`` and ``--watch``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsdp2lint.cli.check.watch import concerns, watched
from tests.support.running import CLEAN, ROOT, invoke

UNUSED = "x = 1  # fsdp2lint: ignore[FSDP203]\ny = 2  # fsdp2lint: ignore[FSDP201]\n"
FIRST, SECOND = "x = 1\n", "y = 2\n"


@pytest.mark.parametrize(
    ("answers", "after"),
    [
        ("y\ny\n", FIRST + SECOND),
        ("n\ny\n", UNUSED.splitlines(keepends=True)[0] + SECOND),
        ("y\nn\n", FIRST + UNUSED.splitlines(keepends=True)[1]),
        ("a\n", FIRST + SECOND),
        ("q\n", UNUSED),
        ("y\nq\n", FIRST + UNUSED.splitlines(keepends=True)[1]),
    ],
)
def test_each_fix_is_asked_about(tmp_path: Path, answers: str, after: str) -> None:
    (tmp_path / "x.py").write_text(CLEAN + UNUSED)
    shown = invoke("check", "-i", "-f", "concise", cwd=tmp_path, text=answers)
    assert (tmp_path / "x.py").read_text() == CLEAN + after
    assert shown.stderr.count("Apply this fix?") == answers.count("\n")
    assert shown.returncode == int(after != FIRST + SECOND)


def test_what_is_not_fixed_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(CLEAN + UNUSED)
    shown = invoke("check", "-i", "-f", "concise", cwd=tmp_path, text="n\ny\n")
    assert "x.py:6:28: FSDP901" in shown.stdout
    assert "x.py:7" not in shown.stdout


def test_no_script_on_standard_input(tmp_path: Path) -> None:
    shown = invoke("check", "-i", "-", cwd=tmp_path, text=CLEAN)
    assert (shown.returncode, "both read standard input" in shown.stderr) == (2, True)


def test_watching_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    shown = invoke("check", "--watch", cwd=tmp_path)
    assert shown.returncode == 2
    assert shown.stderr == "Error: --watch needs watchfiles: pip install 'fsdp2lint[watch]'\n"


def test_watching(tmp_path: Path) -> None:
    pytest.importorskip("watchfiles")
    (tmp_path / "x.py").write_text(CLEAN)
    said = tmp_path / "said.txt"
    with said.open("w") as stream:
        running = subprocess.Popen(
            [sys.executable, "-m", "fsdp2lint", "check", "--watch", "-f", "concise"],
            cwd=tmp_path,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            },
        )
    try:
        _until(said, "Watching for changes", tmp_path / "y.py", "x = 1\n")
        _until(said, "Found 2 warnings.", tmp_path / "x.py", CLEAN + UNUSED)
        _until(said, "unknown key `selct`", tmp_path / "fsdp2lint.toml", "selct = []\n")
        said.write_text("")
        _until(said, "No findings", tmp_path / "fsdp2lint.toml", "ignore = ['FSDP901']\n")
    finally:
        running.terminate()
        running.wait(timeout=60)


@pytest.mark.parametrize(
    ("path", "matters"),
    [
        ("/home/me/.work/src/x.py", True),
        ("/home/me/.work/./src/x.py", True),
        ("/home/me/.work/.fsdp2lint.toml", True),
        ("/home/me/.work/.venv/lib/x.py", False),
        ("/home/me/.work/src/.git/x.py", False),
        ("/home/me/.work/notes.txt", False),
    ],
)
def test_what_is_watched(path: str, matters: bool) -> None:
    assert concerns(path, ["/home/me/.work"]) is matters


def test_of_a_file_its_folder_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it imports changes the result too."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "x.py").touch()
    monkeypatch.chdir(tmp_path)
    assert watched(["a/x.py", "a/b"]) == [str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    assert watched(["."]) == [str(tmp_path)]


def _until(said: Path, text: str, file: Path, content: str) -> None:
    """Write a file, again and again until the program has said so: it may not have been listening."""
    deadline = time.monotonic() + 600
    while text not in said.read_text():
        assert time.monotonic() < deadline, said.read_text()
        file.write_text(content)
        time.sleep(1)
