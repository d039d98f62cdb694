"""Fixtures of the rules and what their headers claim: `# evidence: …`, one claim a line."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

RULES = Path(__file__).resolve().parents[2] / "fixtures" / "rules"

_SLOW = "background saves are slow"
_FULL = "the storage is full at the second save"
_NOT_SHOWN = "not shown on CPU -- "
_CLAIM = re.compile(r"^# evidence: (.+)$", re.MULTILINE)
_MARK = re.compile(r"# (expect|fine): (FSDP\d{3}(?:, FSDP\d{3})*)$", re.MULTILINE)


@dataclass(frozen=True)
class Fixture:
    """One bad or good script of a rule; a folder is entered at its `main.py`."""

    path: Path

    @property
    def script(self) -> Path:
        """The file to run."""
        return self.path / "main.py" if self.path.is_dir() else self.path

    @property
    def name(self) -> str:
        """`rule_name/bad_what`, as test ids show it."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def bad(self) -> bool:
        """Whether the rule must speak."""
        return self.path.name.startswith("bad")

    @property
    def claims(self) -> tuple[str, ...]:
        """The evidence lines of the script, but for the settings."""
        return tuple(line for line in self._lines if line not in (_SLOW, _FULL))

    @property
    def slow_saves(self) -> bool:
        """Whether the script asks for a storage that is slow."""
        return _SLOW in self._lines

    @property
    def full_storage(self) -> bool:
        """Whether the script asks for a storage that has room for one save only."""
        return _FULL in self._lines

    @property
    def shown(self) -> bool:
        """Whether a run on a CPU shows the damage."""
        return not any(line.startswith(_NOT_SHOWN) for line in self._lines)

    @property
    def files(self) -> list[Path]:
        """All its Python files, in order of name."""
        return sorted(self.path.rglob("*.py")) if self.path.is_dir() else [self.path]

    def copied(self, folder: Path) -> Fixture:
        """The same fixture below another folder, where it may be changed."""
        target = folder / self.path.name
        if self.path.is_dir():
            shutil.copytree(self.path, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            folder.mkdir(parents=True)
            shutil.copy(self.path, target)
        return Fixture(target)

    @cached_property
    def _lines(self) -> list[str]:
        return _CLAIM.findall(self.script.read_text("utf-8"))

    def marks(self, word: str) -> list[str]:
        """The codes marked `expect` or `fine` in all files of the fixture."""
        found = [mark for file in self.files for mark in _MARK.findall(file.read_text("utf-8"))]
        return [code for kind, codes in found if kind == word for code in codes.split(", ")]


def fixtures(rules: Path = RULES) -> Iterator[Fixture]:
    """Every bad and good script under the folder of rules, in order of name."""
    for path in sorted(rules.glob("*/*")):
        if path.name.startswith(("bad", "good")) and (path.is_dir() or path.suffix == ".py"):
            yield Fixture(path)
