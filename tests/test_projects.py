"""The whole programs under ``fixtures/projects``: what stands in ``run.toml`` is so, ``after`` is quiet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from tests.support.running import ROOT, program

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECTS = ROOT / "fixtures" / "projects"
FOLDERS = sorted(path.parent for path in PROJECTS.glob("*/run.toml"))
FSDP1 = (
    "FullyShardedDataParallel",
    "MixedPrecision(",
    "StateDictType",
    "fully_sharded_data_parallel",
    "torch.distributed.fsdp.wrap",
    "fsdp import ShardingStrategy",
    "_fsdp_wrapped_module",
    "summon_full_params",
    ".no_sync()",
    "mp.spawn",
)


class Differs(msgspec.Struct, forbid_unknown_fields=True):
    """Where a fault shows."""

    run: Literal["args", "resume"]
    what: Literal["loss", "norm", "units", "plan", "raises"]
    step: int | None = None
    world: int | None = None


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """A mistake that is planted in ``after``."""

    name: str
    file: str
    old: str
    new: str
    differs: Differs
    why: str = ""


class Resume(msgspec.Struct, forbid_unknown_fields=True):
    """A run that saves and one that goes on from there."""

    save: list[str]
    continue_: list[str] = msgspec.field(name="continue")
    steps: int
    otherwise: str = ""


class Run(msgspec.Struct, forbid_unknown_fields=True):
    """A ``run.toml``."""

    entry: str
    nproc: int
    args: list[str]
    steps: int
    rtol: float
    units: list[str]
    covers: list[str]
    resume: Resume
    faults: list[Fault]
    also: list[list[str]] = []
    alike: list[str] = []


def run_of(folder: Path) -> Run:
    return msgspec.convert(
        tomllib.loads((folder / "run.toml").read_text(encoding="utf-8")), Run, strict=True
    )


def files_of(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.py"))}


each = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))


def test_there_are_enough() -> None:
    assert len(FOLDERS) >= 12


@each
def test_both_programs_have_the_same_files(folder: Path) -> None:
    run, before, after = run_of(folder), files_of(folder / "before"), files_of(folder / "after")
    assert before.keys() == after.keys()
    assert run.entry in before
    assert run.covers
    assert 0 < run.resume.steps < run.steps


@each
def test_both_programs_compile(folder: Path) -> None:
    for side in ("before", "after"):
        for name, path in files_of(folder / side).items():
            compile(path.read_text(encoding="utf-8"), name, "exec")


def unused_and_missing(folder: Path) -> set[tuple[str, str]]:
    """Names that are imported for nothing, or used and never bound, with their files."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--exit-zero"),
            *("--select", "F401,F811,F821,F841", "--output-format", "json", "."),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        (str(Path(found["filename"]).relative_to(folder)), found["message"])
        for found in json.loads(result.stdout)
    }


@each
def test_migrating_leaves_no_name_unused_or_missing(folder: Path) -> None:
    before, after = unused_and_missing(folder / "before"), unused_and_missing(folder / "after")
    assert after <= before


@each
def test_only_the_original_uses_fsdp1(folder: Path) -> None:
    texts = {
        side: "\n".join(p.read_text(encoding="utf-8") for p in files_of(folder / side).values())
        for side in ("before", "after")
    }
    assert "FullyShardedDataParallel" in texts["before"]
    used = [name for name in FSDP1 if name in texts["after"]]
    # the branch for DDP keeps what DDP has
    assert used == ([".no_sync()"] if folder.name == "strategy_switch" else [])


@each
def test_a_fault_stands_once_and_leaves_a_program(folder: Path) -> None:
    for fault in run_of(folder).faults:
        text = (folder / "after" / fault.file).read_text(encoding="utf-8")
        assert text.count(fault.old) == 1, fault.name
        compile(text.replace(fault.old, fault.new), fault.file, "exec")
        assert (fault.differs.step is None) == (fault.differs.what in ("units", "plan", "raises"))


@each
def test_the_migrated_program_is_quiet(folder: Path) -> None:
    """For the oldest torch that the program itself asks for."""
    options = ("--isolated", "--no-cache", "--output-format", "json")
    result = program("check", *options, folder / "after")
    assert result.returncode in (0, 1), result.stderr
    said = [(f["code"], f["filename"], f["location"]["row"]) for f in json.loads(result.stdout)]
    assert said == []


def test_no_program_left_something_behind() -> None:
    """A run writes where it was started, never beside the fixtures."""
    listed = subprocess.run(
        ["git", "status", "--porcelain", "--ignored", "fixtures/projects"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    stray = [line for line in listed.stdout.splitlines() if line.startswith("!!")]
    assert [line for line in stray if "__pycache__" not in line] == []
