"""Rules from outside: packages that are installed beside fsdp2lint and named in the configuration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.test_config import LATE
from tests.support.running import ROOT, misconfigured, program

RULE = '''"""A seed is set after the model is sharded.

## What it does
Finds `torch.manual_seed` below `fully_shard`.
"""

from fsdp2lint.api import Called, Finding, Sharded, rule

from acme_rules._words import MESSAGE


@rule(code="ACME001", group="correctness", url="https://acme.example/rules/ACME001")
def check(trace):
    for call in trace.of(Called):
        if call.name.endswith("manual_seed") and any(trace.before(call, Sharded)):
            yield Finding(at=call, message=MESSAGE)
'''
SCRIPT = """import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

model = nn.Linear(8, 8)
fully_shard(model)
torch.manual_seed(0)
"""
ENTRY_POINTS = "[fsdp2lint.rules]\nacme = acme_rules\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A project, and beside it a folder of installed packages."""
    package = tmp_path / "site" / "acme_rules"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "_words.py").write_text('MESSAGE = "the seed comes late"\n')
    (package / "late_seed.py").write_text(RULE)
    about = tmp_path / "site" / "acme_rules-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-rules\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    return tmp_path


def configured(place: Path, *plugins: str) -> None:
    (place / "project" / "fsdp2lint.toml").write_text(f"plugins = {json.dumps(plugins)}\n")


def run(place: Path, *words: str, module: bool = True) -> subprocess.CompletedProcess[str]:
    """fsdp2lint in the project, as `python -m` or as the installed program."""
    path = os.pathsep.join((str(place / "site"), str(ROOT)))
    if module:
        return program(*words, cwd=place / "project", PYTHONPATH=path)
    return subprocess.run(
        [sys.executable, str(Path(sys.executable).with_name("fsdp2lint")), *words],
        cwd=place / "project",
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def messages(place: Path, *words: str) -> list[tuple[str, str]]:
    done = run(place, "check", "-f", "json", *words)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    return [(one["code"], one["message"]) for one in found]


@pytest.mark.parametrize("name", ["acme", "acme_rules", "acme_rules.late_seed", "*"])
def test_rules_of_a_plugin_run_like_others(place: Path, name: str) -> None:
    configured(place, name)
    done = run(place, "check", "-f", "concise", module=name != "acme")
    assert done.returncode == 1, done.stderr
    assert "train.py:7:1: ACME001 the seed comes late" in done.stdout


def test_nothing_runs_that_is_only_installed(place: Path) -> None:
    assert messages(place) == []


def test_they_are_selected_silenced_and_explained_by_their_codes(place: Path) -> None:
    configured(place, "acme")
    assert [code for code, _ in messages(place, "--select", "ACME")] == ["ACME001"]
    assert messages(place, "--ignore", "late-seed") == []
    script = place / "project" / "train.py"
    script.write_text(SCRIPT.rstrip() + "  # fsdp2lint: ignore[ACME001] -- on purpose\n")
    assert messages(place) == []
    page = run(place, "rule", "ACME001")
    assert page.stdout.startswith("ACME001 late-seed (correctness)\n")
    assert "## Accuracy" not in page.stdout
    (said,) = json.loads(run(place, "rule", "late-seed", "-f", "json").stdout)
    assert said["url"] == "https://acme.example/rules/ACME001"


def test_kept_results_depend_on_every_file_of_the_plugin(place: Path) -> None:
    configured(place, "acme")
    late = [("ACME001", "the seed comes late")]
    assert messages(place) == messages(place) == late
    (place / "site/acme_rules/_words.py").write_text('MESSAGE = "set the seed above"\n')
    assert messages(place) == [("ACME001", "set the seed above")]
    configured(place)
    assert messages(place) == []
    configured(place, "acme")
    assert messages(place) == [("ACME001", "set the seed above")]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("raise RuntimeError('no\\nway')", "cannot be imported: RuntimeError: no"),
        ("import nowhere_at_all", "cannot be imported: ModuleNotFoundError: No module named"),
        ("raise SystemExit(0)", "cannot be imported: SystemExit: 0"),
        ("x = 1", "declares no rule"),
        (RULE.replace("ACME001", "FSDP201"), "a code is letters of its own and three digits"),
        (RULE.replace("correctness", "style"), "in a group `style` that does not exist"),
        (RULE.partition('"""\n\nfrom')[2].join(("from", "")), "without a page"),
    ],
)
def test_a_plugin_that_fails_is_one_line(place: Path, rule: str, said: str) -> None:
    (place / "site/acme_rules/late_seed.py").write_text(f"import fsdp2lint\n{rule}")
    configured(place, "acme")
    (place / "project/late.py").write_text(LATE)
    for command in (["rule", "FSDP201"], ["check", "--show-settings"]):
        done = run(place, *command)
        assert done.returncode == 2
        assert "FSDP201" in done.stdout
        (line,) = done.stderr.splitlines()
        assert "fsdp2lint.toml:1: `plugins`: plugin `acme_rules`" in line
        assert said in line
    done = run(place, "check", "-f", "concise")
    assert done.returncode == 2
    assert "fsdp2lint.toml:1:1: FSDP903 `plugins`: plugin `acme_rules`" in done.stdout
    assert "late.py" in done.stdout


def test_a_plugin_that_is_not_there_is_one_line(place: Path) -> None:
    configured(place, "nowhere")
    (place / "project/late.py").write_text(LATE)
    (line,) = misconfigured(place / "project")
    assert "fsdp2lint.toml:1: `plugins`: `nowhere`: no module `nowhere` is installed" in line


def test_an_installed_module_that_is_no_plugin_is_never_imported(place: Path) -> None:
    """Importing `this` prints, `antigravity` opens a browser."""
    (place / "site/other.py").write_text("open('ran', 'w')\n")
    (place / "project/late.py").write_text(LATE)
    for name in (
        "this",
        "other",
        "antigravity",
        "antigravity.inner",
        "fsdp2lint.__main__",
        "..",
        "a b",
    ):
        configured(place, name)
        done = run(place, "check", "-f", "concise")
        assert done.returncode == 2
        assert "late.py" in done.stdout
        assert done.stdout.count("FSDP903 `plugins`") == 1
        assert "Zen" not in done.stdout
        assert not (place / "project/ran").exists()


def test_code_of_the_checked_project_is_never_imported(place: Path) -> None:
    (place / "project/evil.py").write_text("open('ran', 'w')\n")
    configured(place, "evil")
    done = run(place, "check")
    assert done.returncode == 2
    assert not (place / "project/ran").exists()
