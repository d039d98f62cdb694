"""The extension for VS Code: its parts fit together, and its own tests pass where node and its packages are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsdp2lint import __version__

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors" / "vscode"


def package() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((EXTENSION / "package.json").read_text("utf-8"))
    return read


def test_the_commands_in_the_menu_are_those_that_are_registered() -> None:
    source = (EXTENSION / "src" / "extension.js").read_text("utf-8")
    registered = {f"fsdp2lint.{name}" for name in re.findall(r'register\("(\w+)"', source)}
    offered = {one["command"] for one in package()["contributes"]["commands"]}
    assert offered == registered


def test_the_settings_that_are_read_are_described() -> None:
    texts = [path.read_text("utf-8") for path in (EXTENSION / "src").glob("*.js")]
    read = {name for text in texts for name in re.findall(r'\.get\("(\w+)"\)', text)}
    described = package()["contributes"]["configuration"]["properties"]
    assert {f"fsdp2lint.{name}" for name in read} | {"fsdp2lint.trace.server"} == set(described)


def test_it_has_the_version_of_the_program() -> None:
    assert package()["version"] == __version__


def test_what_is_locked_names_no_registry() -> None:
    assert '"resolved"' not in (EXTENSION / "package-lock.json").read_text("utf-8")


def test_its_own_tests_pass() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (EXTENSION / "node_modules").is_dir():
        pytest.skip("run `npm ci` in editors/vscode first")
    done = subprocess.run(
        [node, "--test", *map(str, sorted((EXTENSION / "test").glob("*.test.js")))],
        cwd=EXTENSION,
        env={**os.environ, "FSDP2LINT": f"{sys.executable} -m fsdp2lint"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
