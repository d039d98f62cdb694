"""The oldest torch release that a project promises to run on, read from its own dependencies."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

_TORCH = re.compile(r"^\s*torch\b(?!-)", re.IGNORECASE)
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
_BOUND = re.compile(r"(>=|==|~=|>|\^|~)\s*v?(\d+(?:\.\d+)*)")


def required_torch(folder: str) -> str | None:
    """The lower bound on torch in the project around ``folder``; None when it names none.

    Dependencies come first, then optional ones and groups, then ``requirements*.txt``; of several bounds
    in one place the lowest counts. What cannot be read is passed over: the project's own tools say so.
    """
    root = _root(folder)
    if root is None:
        return None
    for requirements in _places(root):
        bounds = [b for one in requirements if (b := _bound(one)) is not None]
        if bounds:
            return min(bounds, key=_numbers)
    return None


def _root(folder: str) -> str | None:
    here = os.path.abspath(folder)
    while not any(os.path.exists(os.path.join(here, mark)) for mark in _MARKS):
        parent = os.path.dirname(here)
        if parent == here:
            return None
        here = parent
    return here


def _places(root: str) -> Iterator[Iterable[str]]:
    """The requirements of each place, the most binding place first."""
    project = _pyproject(os.path.join(root, "pyproject.toml"))
    own = _table(project, "project")
    yield _strings(own.get("dependencies"))
    yield _poetry(_table(_table(_table(project, "tool"), "poetry"), "dependencies"))
    for groups in (own.get("optional-dependencies"), project.get("dependency-groups")):
        if isinstance(groups, dict):
            yield [one for group in groups.values() for one in _strings(group)]
    try:
        names = sorted(n for n in os.listdir(root) if re.fullmatch(r"requirements.*\.txt", n))
    except OSError:
        return
    for name in names:
        yield _lines(os.path.join(root, name))


def _pyproject(path: str) -> dict[str, Any]:
    from fsdp2lint.config import toml

    try:
        with open(path, encoding="utf-8-sig") as file:
            return toml.loads(file.read())
    except (OSError, ValueError):
        return {}


def _table(outer: dict[str, Any], key: str) -> dict[str, Any]:
    inner = outer.get(key)
    return inner if isinstance(inner, dict) else {}


def _strings(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _poetry(table: dict[str, Any]) -> list[str]:
    said = table.get("torch")
    version = said.get("version") if isinstance(said, dict) else said
    if not isinstance(version, str):
        return []
    return [f"torch =={version}" if version[:1].isdigit() else f"torch {version}"]


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.partition("#")[0] for line in file]
    except OSError:
        return []


def _bound(requirement: str) -> str | None:
    """``2.7`` of ``torch>=2.7,<3; extra == "gpu"``."""
    if _TORCH.match(requirement) is None:
        return None
    bounds = [version for _, version in _BOUND.findall(requirement.partition(";")[0])]
    return max(bounds, key=_numbers) if bounds else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
