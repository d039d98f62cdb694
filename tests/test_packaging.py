"""What gets installed; that the wheel works by itself is tried in .ci/run."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsdp2lint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent


def project() -> dict[str, Any]:
    read: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return read


def test_no_module_lies_outside_a_package() -> None:
    """What is found is what is packed: a folder without ``__init__`` works in a checkout and is missing from the wheel."""
    for folder in ("fsdp2lint", "rules", "codemods"):
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


def test_the_version_stands_in_one_place() -> None:
    assert project()["project"]["dynamic"] == ["version"]
    assert "version" not in project()["project"]


def test_the_entry_point_exists() -> None:
    module, _, name = project()["project"]["scripts"]["fsdp2lint"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "fsdp2lint" / "py.typed").exists()
    assert "py.typed" in project()["tool"]["setuptools"]["package-data"]["fsdp2lint"]


def test_data_files_are_packed() -> None:
    """A data file that is not listed works in a checkout and is missing from the wheel."""
    inside = [p for p in (ROOT / "fsdp2lint").rglob("*.*") if p.suffix not in (".py", ".pyc")]
    listed = project()["tool"]["setuptools"]["package-data"]
    packed = [ROOT / package.replace(".", "/") / n for package in listed for n in listed[package]]
    assert sorted(inside) == sorted(packed)


def test_check_needs_no_torch() -> None:
    """Torch is no dependency of the program, only of what runs training."""
    needed = project()["project"]["dependencies"]
    assert not [d for d in needed if d.startswith("torch")]


def test_every_import_of_another_distribution_is_declared() -> None:
    """In a fresh process without the test tools on its mind: what check loads is what it depends on."""
    code = (
        "import sys, fsdp2lint.check.analysis, fsdp2lint.cli.program\n"
        "for name in 'check', 'rule', 'trace': __import__(f'fsdp2lint.cli.{name}')\n"
        "from fsdp2lint.catalogue import knowledge; from fsdp2lint import reporters; knowledge.rules()\n"
        "for name in reporters.formats(): __import__('fsdp2lint.reporters.' + name.replace('-', '_'))\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules}))\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    origin = importlib.metadata.packages_distributions() if sys.version_info >= (3, 10) else {}
    distributions = {d.lower() for name in loaded for d in origin.get(name, ())}
    declared = {d.split(">")[0].split(";")[0].strip() for d in project()["project"]["dependencies"]}
    own = {"fsdp2lint", "setuptools", "pip", "_distutils_hack"}
    indirect = {
        "typing_extensions",
        "pyyaml",
        "pyyaml-ft",
        "mdurl",
        "pygments",
        "colorama",
    }
    assert distributions - own - indirect <= declared


def test_the_version_is_what_is_printed() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "fsdp2lint", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == f"fsdp2lint {fsdp2lint.__version__}\n"


def test_guard_is_importable_by_its_former_name() -> None:
    """In a process of its own: who imports ``guard`` is watched from then on."""
    code = "from fsdp2lint import rehearse, verify; assert verify.guard is rehearse.guard"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
