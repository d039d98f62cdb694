"""Short input that would take all time or memory: one file or setting costs one finding or one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fsdp2lint.config.target import Targets
from fsdp2lint.system.globs import spelled_out
from tests.config.test_config import LATE
from tests.support.running import invoke, misconfigured, program

HEAD = "from torch.distributed.fsdp import fully_shard\n"
LONG = {
    "calls": "x = a" + "()" * 3000,
    "methods": "x = (a" + "\n    .b(1, 2)" * 3000 + ")",
    "lambdas": "x = " + "lambda: " * 3000 + "0",
    "attributes": "x = a" + ".b" * 3000,
    "sum": "x = " + "a + " * 3000 + "0",
    "choices": "x = " + "a if b else " * 3000 + "0",
    "minus": "x = " + "-" * 3000 + "0",
    "continued": "x = a" + " \\\n  + b" * 3000,
    "statements": "x = 1; " * 3000,
    "a comment that a carriage return ends": "# a comment\rx = " + "not " * 3000 + "0",
}
USUAL = {
    "numbers": "x = [" + "1, " * 9000 + "]",
    "table": "x = {" + "".join(f"'{n}': f(a.b.c({n})[0] + 1),\n" for n in range(3000)) + "}",
    "text": "x = (" + "'some words'\n" * 3000 + ")",
    "calls": "x = f(\n" + "    a.b(1).c(),\n" * 2000 + ")",
    "brackets in text": "x = '('\n" * 3000,
    "statements in text": "x = '''\n" + "a: b; " * 3000 + "\n'''",
}


def check(folder: Path) -> list[tuple[str, str]]:
    shown = invoke("check", "-n", "-j1", "-f", "json", cwd=folder)
    assert shown.returncode in (0, 1), shown.stderr
    return [(one["filename"], one["code"]) for one in json.loads(shown.stdout)]


@pytest.mark.parametrize("name", LONG)
def test_an_expression_without_end_is_one_finding(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.py").write_text(HEAD + LONG[name] + "\n")
    (tmp_path / "y.py").write_text(
        "import torch.distributed.fsdp\nx = 1  # fsdp2lint: ignore[FSDP203]\n"
    )
    started = time.process_time()
    assert check(tmp_path) == [("x.py", "FSDP900"), ("y.py", "FSDP901")]
    assert time.process_time() - started < 10


@pytest.mark.parametrize("name", USUAL)
def test_long_lists_are_no_long_expressions(tmp_path: Path, name: str) -> None:
    (tmp_path / "x.py").write_text(HEAD + USUAL[name] + "\n")
    assert check(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs sparse files and pipes")
def test_a_size_is_asked_before_a_file_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "x.py", "wb") as file:
        file.truncate(6_000_000_000)
    with open(tmp_path / ".gitignore", "wb") as file:
        file.truncate(6_000_000_000)
    os.mkfifo(tmp_path / "pyproject.toml")
    os.mkdir(tmp_path / "below")
    os.mkfifo(tmp_path / "below" / ".gitignore")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    done = program("check", "-n", "--isolated", cwd=tmp_path)
    assert "FSDP900" in done.stdout
    assert "too large: 6,000 MB where 64 MB is the limit" in done.stdout
    done = program("check", "-n", "-f", "concise", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "")
    assert "pyproject.toml:1:1: FSDP903 neither a file nor a folder\n" in done.stdout
    assert "x.py:1:1: FSDP900" in done.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exclude = ['" + "{a,b}" * 24 + "']", "`exclude`"),
        ("[per-file-ignores]\n'" + "{a,b}" * 24 + "' = ['FSDP2']", "`per-file-ignores`"),
        ("x = " + "[" * 3000, "nested too deeply"),
        ("x = " + "{a=" * 3000, "nested too deeply"),
        ("target-torch = '" + "9" * 6000 + "'", "is not a torch version"),
        ("x = " + "9" * 6000, "digits"),
        ("extend = 'fsdp2lint.toml'", "circle"),
    ],
)
def test_a_setting_without_end_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "fsdp2lint.toml").write_text(text)
    (tmp_path / "x.py").write_text(LATE)
    (line,) = misconfigured(tmp_path)
    assert said in line


@pytest.mark.parametrize("bound", ["torch>=" + "9" * 6000, "torch>=2." + "9" * 6000])
def test_a_bound_without_end_is_none(tmp_path: Path, bound: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'x'\ndependencies = ['{bound}']\n")
    (tmp_path / "requirements.txt").write_text(bound)
    (tmp_path / "x.py").write_text(HEAD)
    assert Targets().around(str(tmp_path)) in (None, "2")
    assert check(tmp_path) == []


def test_usual_bounds_are_read_as_before(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for bound, wanted in (
        ("torch==2.7.*", "2.7"),
        ("torch>=2.6.0,<3", "2.6.0"),
        ("torch~=2.8", "2.8"),
    ):
        (tmp_path / "requirements.txt").write_text(bound)
        assert Targets().around(str(tmp_path)) == wanted


def test_ignore_files_of_stars(tmp_path: Path) -> None:
    """What cannot be matched in time hides nothing; the patterns beside it count."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text(
        "*a" * 20 + "b\n" + "*" * 5000 + "b\nhidden.py\n**/deep/*.py\n"
    )
    (tmp_path / "deep").mkdir()
    for name in ("a" * 200 + ".py", "hidden.py", "deep/x.py"):
        (tmp_path / name).write_text(
            "import torch.distributed.fsdp\nx = 1  # fsdp2lint: ignore[FSDP203]\n"
        )
    started = time.process_time()
    assert check(tmp_path) == [("a" * 200 + ".py", "FSDP901")]
    assert time.process_time() - started < 10


def test_patterns_that_stand_for_too_many() -> None:
    assert len(spelled_out("{a,b}{c,d}/**/x")) == 8
    for pattern in ("{a,b}" * 24, "/".join(["**", "a"] * 24), "x" * 5000):
        with pytest.raises(ValueError, match="more than"):
            spelled_out(pattern)
