"""The oldest torch release that a project promises to run on, read from its own dependencies.

The project of a file is the nearest that names torch: one repository may hold several.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from fsdp2lint.system.files import MAX_TEXT, read

_TORCH = re.compile(r"^\s*torch\b(?!-)", re.IGNORECASE)
_MARKS = ("pyproject.toml", "setup.py", "setup.cfg")
_REPOSITORY = ".git"
_BOUND = re.compile(r"(>=|==|~=|>|\^|~)\s*v?(\d{1,9}(?:\.\d{1,9}){0,9})(?!\d)")
_REQUIREMENTS = re.compile(r"requirements.*\.(in|txt)")
_FOLDER = "requirements"


class Targets:
    """What the projects ask for, each of them read once."""

    def __init__(self) -> None:
        self._around: dict[str, str | None] = {}
        self._named: dict[str, str | None] = {}

    def around(self, folder: str) -> str | None:
        """The lower bound on torch that counts in a folder: the nearest one, up to the repository's top.

        Outside of a repository the nearest project is the last that is asked.
        """
        if folder not in self._around:
            named = map(self._in_folder, _homes(os.path.abspath(folder)))
            self._around[folder] = next((one for one in named if one is not None), None)
        return self._around[folder]

    def _in_folder(self, folder: str) -> str | None:
        if folder not in self._named:
            self._named[folder] = named_in(folder)
        return self._named[folder]


def named_in(folder: str) -> str | None:
    """The lower bound on torch that the files of a project at ``folder`` name, if any.

    Dependencies come first, then optional ones and groups, then ``requirements*.txt`` and what lies in a
    folder ``requirements``; of several bounds in one place the lowest counts. What cannot be read is passed
    over: the project's own tools say so.
    """
    for requirements in _places(folder):
        bounds = [b for one in requirements if (b := _bound(one)) is not None]
        if bounds:
            return min(bounds, key=_numbers)
    return None


def _homes(folder: str) -> list[str]:
    """The folders whose files may speak for ``folder``, the nearest first."""
    every, own = [], 0
    while True:
        every.append(folder)
        if os.path.exists(os.path.join(folder, _REPOSITORY)):
            return every
        if not own and any(os.path.exists(os.path.join(folder, mark)) for mark in _MARKS):
            own = len(every)
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return every[:own]


def _places(root: str) -> Iterator[Iterable[str]]:
    """The requirements of each place, the most binding place first."""
    try:
        names = frozenset(os.listdir(root))
    except OSError:
        return
    if "pyproject.toml" in names:
        yield from _of_pyproject(_pyproject(os.path.join(root, "pyproject.toml")))
    if "setup.cfg" in names:
        yield from _of_setup_cfg(os.path.join(root, "setup.cfg"))
    if "setup.py" in names:
        yield _of_setup_py(os.path.join(root, "setup.py"))
    for name in sorted(names):
        if _REQUIREMENTS.fullmatch(name):
            yield _lines(os.path.join(root, name))
    if _FOLDER in names:
        yield from _of_folder(os.path.join(root, _FOLDER))


def _of_folder(folder: str) -> Iterator[Iterable[str]]:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if name.endswith((".in", ".txt")):
            yield _lines(os.path.join(folder, name))


def _of_pyproject(project: dict[str, Any]) -> Iterator[Iterable[str]]:
    own, tools = _table(project, "project"), _table(project, "tool")
    poetry = _table(tools, "poetry")
    yield _strings(own.get("dependencies"))
    yield _poetry(_table(poetry, "dependencies"))
    for groups in (_table(own, "optional-dependencies"), _table(project, "dependency-groups")):
        yield [one for group in groups.values() for one in _strings(group)]
    yield _strings(_table(tools, "uv").get("dev-dependencies"))
    groups = _table(poetry, "group")
    tables = (_table(_table(groups, name), "dependencies") for name in groups)
    yield [one for table in tables for one in _poetry(table)]


def _of_setup_cfg(path: str) -> Iterator[Iterable[str]]:
    from configparser import ConfigParser, Error

    config = ConfigParser(interpolation=None)
    try:
        config.read_string(read(path, MAX_TEXT).decode("utf-8"))
    except (OSError, Error, UnicodeDecodeError):
        return
    yield config.get("options", "install_requires", fallback="").splitlines()
    if config.has_section("options.extras_require"):
        yield [
            one for _, text in config["options.extras_require"].items() for one in text.split("\n")
        ]


def _of_setup_py(path: str) -> list[str]:
    """The members of lists: what ``setup`` is called with cannot be known without running it."""
    import ast

    try:
        tree = ast.parse(read(path, MAX_TEXT))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    lists = (node for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple | ast.Set))
    members = (one for node in lists for one in node.elts if isinstance(one, ast.Constant))
    return [one.value for one in members if isinstance(one.value, str)]


def _pyproject(path: str) -> dict[str, Any]:
    from fsdp2lint.config import toml

    try:
        return toml.loads(read(path, MAX_TEXT).decode("utf-8-sig").replace("\r\n", "\n"))
    except (OSError, ValueError):
        return {}


def _table(outer: dict[str, Any], key: str) -> dict[str, Any]:
    inner = outer.get(key)
    return inner if isinstance(inner, dict) else {}


def _strings(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _poetry(table: dict[str, Any]) -> list[str]:
    """The requirements in a table of poetry: one release, or several for different machines."""
    given = next((said for name, said in table.items() if name.lower() == "torch"), None)
    every = given if isinstance(given, list) else [given]
    versions = (one.get("version") if isinstance(one, dict) else one for one in every)
    ranges = (part.strip() for v in versions if isinstance(v, str) for part in v.split("||"))
    return [f"torch =={one}" if one[:1].isdigit() else f"torch {one}" for one in ranges]


def _lines(path: str) -> list[str]:
    try:
        lines = read(path, MAX_TEXT).decode("utf-8", "replace").splitlines()
        return [line.partition("#")[0] for line in lines]
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
