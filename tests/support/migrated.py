"""The whole FSDP1 programs of ``fixtures/projects``, migrated by the tool without a hand edit."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import Migration, migrate
from fsdp2lint.migrate.files import choose, launch_files
from fsdp2lint.system.discover import Exclusion, discover

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECTS = Path(__file__).parents[2] / "fixtures" / "projects"
NAMES = sorted(path.parent.name for path in PROJECTS.glob("*/run.toml"))


@cache
def migrated(name: str) -> Migration:
    """What the tool makes of a program."""
    return migrate_folder(PROJECTS / name / "before")


def migrate_folder(folder: Path) -> Migration:
    """What the tool makes of the files of a folder."""
    chosen = choose(discover([str(folder)], Exclusion()), launch_files([str(folder)], Exclusion()))
    assert chosen.problems == ()
    return migrate(chosen.sources, knowledge.codemods(), chosen.roots, texts=chosen.texts)


def settings(name: str) -> dict[str, Any]:
    """How a program is run."""
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
