"""Whole FSDP1 programs after ``migrate``: nothing lost, nothing to complain about, and they do the same.

The programs are ``fixtures/projects/*/before`` (see the README there); the tool migrates them without a hand edit.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fsdp2lint import knowledge
from fsdp2lint.discover import Exclusion, discover
from fsdp2lint.migrate.engine import Migration, migrate
from fsdp2lint.migrate.files import choose, launch_files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECTS = Path(__file__).parent.parent / "fixtures" / "projects"
NAMES = sorted(path.parent.name for path in PROJECTS.glob("*/run.toml"))
EACH = pytest.mark.parametrize("name", NAMES)


@cache
def migrated(name: str) -> Migration:
    """What the tool makes of a program."""
    return _migrate(PROJECTS / name / "before")


def _migrate(folder: Path) -> Migration:
    chosen = choose(discover([str(folder)], Exclusion()), launch_files([str(folder)], ()))
    assert chosen.problems == ()
    return migrate(chosen.sources, knowledge.codemods(), chosen.roots, texts=chosen.texts)


@EACH
def test_everything_is_accounted_for_and_nothing_is_left(name: str) -> None:
    made = migrated(name)
    assert made.failures == []
    ledger = made.ledger
    assert sum(ledger.sums.values()) == len(ledger.entries)
    assert ledger.complete
    left = [f"{e.path}:{e.line} {e.symbol}: {e.why}" for e in ledger.manual]
    assert left == []


@EACH
def test_the_migrated_program_is_quiet_under_check(name: str) -> None:
    said = [f"{rule.code} {finding.message}" for rule, finding in migrated(name).remaining]
    assert said == []


@EACH
def test_every_file_compiles_and_migrating_again_changes_nothing(name: str, tmp_path: Path) -> None:
    folder = written(migrated(name), PROJECTS / name / "before", tmp_path)
    for path in folder.rglob("*.py"):
        compile(path.read_bytes(), str(path), "exec")
    assert _migrate(folder).changed == []


@pytest.mark.skipif(find_spec("torch") is None, reason="running needs torch")
@EACH
def test_it_does_the_same(name: str, tmp_path: Path) -> None:
    from fsdp2lint.verify.compare import Options, verify
    from fsdp2lint.verify.places import find

    told = settings(name)
    before = PROJECTS / name / "before"
    after = written(migrated(name), before, tmp_path)
    done = verify(
        find(str(before), entry=told["entry"]),
        find(str(after), entry=told["entry"]),
        Options(tuple(told["args"]), told["nproc"], rtol=max(told["rtol"], 1e-6)),
    )
    assert done.fault is None
    assert [str(one) for one in done.differences] == []


@pytest.mark.skipif(find_spec("torch") is None, reason="running needs torch")
@EACH
def test_it_goes_on_from_an_old_checkpoint(name: str, tmp_path: Path) -> None:
    from fsdp2lint.verify.compare import Options, verify
    from fsdp2lint.verify.places import find

    told = settings(name)
    if "resume" not in told:
        pytest.skip("the program does not resume")
    before = PROJECTS / name / "before"
    after = written(migrated(name), before, tmp_path)
    resume = (tuple(told["resume"]["save"]), tuple(told["resume"]["continue"]))
    done = verify(
        find(str(before), entry=told["entry"]),
        find(str(after), entry=told["entry"]),
        Options((), told["nproc"], rtol=max(told["rtol"], 1e-6), resume=resume),
    )
    assert done.fault is None
    assert [str(one) for one in done.differences] == []


def settings(name: str) -> dict[str, Any]:
    told: dict[str, Any] = tomllib.loads((PROJECTS / name / "run.toml").read_text("utf-8"))
    return told


def written(made: Migration, before: Path, folder: Path) -> Path:
    """The migrated program on disk."""
    for source in made.after:
        path = folder / "migrated" / Path(source.path).resolve().relative_to(before.resolve())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.text, "utf-8")
    _copy_the_rest(before, folder / "migrated")
    return folder / "migrated"


def _copy_the_rest(before: Path, after: Path) -> None:
    """Files that the migration does not read: data, packages without a word of torch."""
    for path in before.rglob("*"):
        target = after / path.relative_to(before)
        if path.is_file() and not target.exists() and "__pycache__" not in path.parts:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
