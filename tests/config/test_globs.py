"""Patterns of paths, and what they are relative to."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.system.globs import anchored, fits
from tests.config.test_config import LATE, found, write


@pytest.mark.parametrize(
    ("pattern", "path", "meant"),
    [
        ("/p/**/x.py", "/p/x.py", True),
        ("/p/**/x.py", "/p/a/b/x.py", True),
        ("/p/**/x.py", "/p/ax.py", False),
        ("/p/**/tests/**/*.py", "/p/tests/x.py", True),
        ("/p/**/**/x.py", "/p/x.py", True),
        ("/p/a/**", "/p/a/b/x.py", True),
        ("/p/a/**", "/p/b/x.py", False),
        ("/p/{a,b}/*.{py,pyw}", "/p/b/x.pyw", True),
        ("/p/{a,b}/*.{py,pyw}", "/p/c/x.py", False),
        ("/p/{a,b{c,d}}/x.py", "/p/bd/x.py", True),
        ("/p/{a}/x.py", "/p/{a}/x.py", True),
        ("/p/[", "/p/[", True),
        ("/p/{a,", "/p/{a,", True),
    ],
)
def test_what_a_pattern_means(pattern: str, path: str, meant: bool) -> None:
    assert fits(path, pattern) is meant


def test_patterns_are_below_their_folder() -> None:
    assert anchored("tests", "/p") == anchored("tests/", "/p") == "/p/**/tests"
    assert anchored("./tests/*", "/p") == "/p/tests/*"
    assert anchored("!x.py", "/p") == "!/p/**/x.py"
    assert anchored("/q/x.py", "/p") == "/q/x.py"


def test_the_folders_above_a_project_are_not_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "tests" / "project"
    (project / "tests").mkdir(parents=True)
    (project / "tests" / "y.py").write_text(LATE)
    write(project, x__py=LATE, fsdp2lint__toml="[per-file-ignores]\n'tests' = ['FSDP201']\n")
    assert found(project) == ["x.py:FSDP201"]
    assert found(project / "tests") == []
    told = ("--isolated", "--per-file-ignores", "tests:FSDP201")
    assert found(project, *told) == ["x.py:FSDP201"]


def test_a_named_file_is_left_out_wherever_one_stands(tmp_path: Path) -> None:
    """The folders that count begin at the configuration, not at the current folder."""
    (tmp_path / "gen" / "deep").mkdir(parents=True)
    (tmp_path / "gen" / "deep" / "y.py").write_text(LATE)
    write(tmp_path, x__py=LATE, fsdp2lint__toml="extend-exclude = ['**/gen']\n")
    assert found(tmp_path) == ["x.py:FSDP201"]
    assert found(tmp_path / "gen", "deep/y.py") == ["deep/y.py:FSDP201"]
    assert found(tmp_path / "gen", "--force-exclude", "deep/y.py") == []
    assert found(tmp_path / "gen" / "deep", "--force-exclude", "y.py") == []
