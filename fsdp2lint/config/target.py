"""The oldest torch release that a project promises to run on, and the newest of frameworks that it allows, read from its
own dependencies.

The project of a file is the nearest that names torch: one repository may hold several. Many projects pin their frameworks
only where they say how to install them (`install.sh`, a Dockerfile, the README): these commands count for the frameworks,
after all lists of dependencies. They are no promise about torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fsdp2lint.model.hints import Limit, Limits
from fsdp2lint.system.files import MAX_TEXT, read

_MARKS = ("pyproject.toml", "setup.py", "setup.cfg")
_REPOSITORY = ".git"
_BOUND = re.compile(r"(>=|==|~=|>|\^|~)\s*v?(\d{1,9}(?:\.\d{1,9}){0,9})(?!\d)")
_LIMIT = re.compile(r"(==|<=|<|~=|\^|~)\s*v?(\d{1,9}(?:\.\d{1,9}){0,9})(?!\d)")
_FRAMEWORKS = ("accelerate", "transformers", "lightning", "pytorch-lightning")
_VERSION_2_BY_DEFAULT = (5, 10, 0)
"""The first release of transformers whose ``fsdp_config`` means version 2 where it says none (``_process_fsdp_args``)."""
_REQUIREMENTS = re.compile(r"requirements.*\.(in|txt)")
_FOLDER = "requirements"
_WORKFLOWS = (".github", "workflows")
_INSTALLING = re.compile(
    r".*\.(sh|bash|md|rst|mk)|(Dockerfile|Containerfile|Makefile).*|.*\.Dockerfile"
)
_INSTALL = re.compile(
    r"\b(?:pip[0-9.]*|uv|conda|mamba|micromamba|poetry)[ \t]+(?:pip[ \t]+)?(?:install|add)[ \t]((?:\\\r?\n|[^\n;&|`#])*)"
)
_ENVIRONMENT = re.compile(r"(?:environment|env|conda).*\.ya?ml")
_FROM_GIT = re.compile(r"git\+\S+?/([\w.-]+?)(?:\.git)?(?:@[^/]*)?(?:#.*)?")


class Targets:
    """What the projects ask for, each of them read once."""

    def __init__(self) -> None:
        self._around: dict[str, str | None] = {}
        self._places: dict[str, list[list[str]]] = {}
        self._installed: dict[str, list[str]] = {}
        self._limits: dict[str, Limits] = {}

    def around(self, folder: str) -> str | None:
        """The lower bound on torch that counts in a folder: the nearest one, up to the repository's top.

        Outside of a repository the nearest project is the last that is asked.
        """
        if folder not in self._around:
            places = map(self._in_folder, _homes(os.path.abspath(folder)))
            named = (_lowest(requirements) for every in places for requirements in every)
            self._around[folder] = next((one for one in named if one is not None), None)
        return self._around[folder]

    def limits(self, folder: str) -> Limits:
        """The frameworks that the nearest project around a folder keeps below some release."""
        if folder not in self._limits:
            self._limits[folder] = limits_in(*self._every(folder))
        return self._limits[folder]

    def trainer_version(self, folder: str) -> int | None:
        """The version of FSDP that the Trainer means without one, in all releases of transformers that the project allows."""
        limit = dict(self.limits(folder)).get("transformers")
        if limit is not None and limit.lacks(_VERSION_2_BY_DEFAULT):
            return 1
        oldest = _oldest(self._every(folder), "transformers")
        return 2 if oldest is not None and (*oldest, 0, 0) >= _VERSION_2_BY_DEFAULT else None

    def _every(self, folder: str) -> list[list[str]]:
        """All lists of requirements that may speak for a folder, the most binding one first."""
        homes = _homes(os.path.abspath(folder))
        places = [one for home in homes for one in self._in_folder(home)]
        return [*places, *(self._installed_in(home) for home in homes)]

    def _installed_in(self, folder: str) -> list[str]:
        """What the commands in a folder install, and its environments of conda."""
        if folder not in self._installed:
            self._installed[folder] = list(_installed(folder))
        return self._installed[folder]

    def _in_folder(self, folder: str) -> list[list[str]]:
        """The requirements in a folder.

        Dependencies come first, then optional ones and groups, then ``requirements*.txt`` and what lies in a
        folder ``requirements``. What cannot be read is passed over: the project's own tools say so.
        """
        if folder not in self._places:
            self._places[folder] = [list(requirements) for requirements in _requirements(folder)]
        return self._places[folder]


def _lowest(requirements: Iterable[str]) -> str | None:
    """The lower bound on torch in one place; of several the lowest."""
    bounds = [b for one in requirements if (b := _bound(one)) is not None]
    return min(bounds, key=_numbers) if bounds else None


def _oldest(places: Sequence[list[str]], name: str) -> tuple[int, ...] | None:
    """The oldest release of a package that the first place which names it allows; None where that has no beginning."""
    for requirements in places:
        named = [one for one in requirements if _is_about(one, name)]
        if named:
            bounds = [_BOUND.findall(one.partition(";")[0]) for one in named]
            if not all(bounds):
                return None
            return min(max(_numbers(version) for _, version in found) for found in bounds)
    return None


def limits_in(*places: list[str]) -> Limits:
    """The frameworks that some lists of requirements keep below some release, the most binding list first."""
    found = ((name, _limit_in(places, name)) for name in _FRAMEWORKS)
    return tuple((name, limit) for name, limit in found if limit)


def _limit_in(places: Sequence[list[str]], name: str) -> Limit | None:
    """What the first place that names a package allows of it; None where that has no end."""
    for requirements in places:
        named = [one for one in requirements if _is_about(one, name)]
        limits = [_limit(one) for one in named]
        known = [limit for limit in limits if limit is not None]
        if limits:
            return max(known, key=lambda limit: limit.before) if len(known) == len(limits) else None
    return None


def _limit(requirement: str) -> Limit | None:
    """``accelerate==1.5.2`` allows nothing from just behind 1.5.2 on, ``accelerate~=1.5.2`` nothing from 1.6 on."""
    wanted = requirement.partition(";")[0].strip()
    befores = []
    for sign, version in _LIMIT.findall(wanted):
        numbers = _numbers(version)
        whole = (*numbers, *(0,) * (3 - len(numbers)))
        kept = {"~=": len(numbers) - 1, "^": 1, "~": min(len(numbers), 2)}.get(sign, 0)
        if sign == "<":
            befores.append(whole)
        elif kept:
            befores.append((*numbers[: kept - 1], numbers[kept - 1] + 1))
        elif f"{version}.*" in wanted:
            befores.append((*numbers[:-1], numbers[-1] + 1))
        else:
            befores.append((*whole, 1))
    text = "".join(wanted.partition(" --")[0].rstrip("\\ ").split())
    return Limit(min(befores), text) if befores else None


def _is_about(requirement: str, name: str) -> bool:
    """Whether a requirement is one of this package, whatever its version."""
    spelled = name.replace("-", "[-_.]")
    return re.match(rf"\s*{spelled}(?![\w.-])", requirement, re.IGNORECASE) is not None


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


def _requirements(root: str) -> Iterator[Iterable[str]]:
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


def _installed(root: str) -> Iterator[str]:
    """The requirements in commands that install packages, and in environments of conda.

    One that names no release allows every one: with a pinned one elsewhere in the folder the newest still counts.
    """
    for folder in (root, os.path.join(root, *_WORKFLOWS)):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            environment = _ENVIRONMENT.fullmatch(name) and folder == root
            commands = _INSTALLING.fullmatch(name) or (folder != root and name.endswith("ml"))
            text = _text(os.path.join(folder, name)) if environment or commands else ""
            if not any(one in text for one in _FRAMEWORKS):
                continue
            if environment:
                yield from (_of_conda(line.strip(" -\t'\"")) for line in text.splitlines())
            else:
                yield from (_of_conda(word) for word in _words_installed(text))


def _words_installed(text: str) -> Iterator[str]:
    """What is behind `pip install` and its like, without options."""
    for line in _INSTALL.findall(text):
        words = re.findall(r"""(?:"[^"]*"|'[^']*'|[^\s"'\\])+""", line)
        yield from (word.replace('"', "").replace("'", "") for word in words if word[0] != "-")


def _of_conda(word: str) -> str:
    """A requirement as pip writes it: conda pins by one sign, and a repository stands for its newest commit."""
    git = _FROM_GIT.fullmatch(word)
    return git[1] if git is not None else re.sub(r"^([\w.-]+)=(?=\d)", r"\1==", word)


def _text(path: str) -> str:
    try:
        return read(path, MAX_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""


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
    found = []
    for name, given in table.items():
        every = given if isinstance(given, list) else [given]
        versions = (one.get("version") if isinstance(one, dict) else one for one in every)
        ranges = (part.strip() for v in versions if isinstance(v, str) for part in v.split("||"))
        found += [f"{name} =={one}" if one[:1].isdigit() else f"{name} {one}" for one in ranges]
    return found


def _lines(path: str) -> list[str]:
    try:
        lines = read(path, MAX_TEXT).decode("utf-8", "replace").splitlines()
        return [line.partition("#")[0] for line in lines]
    except OSError:
        return []


def _bound(requirement: str) -> str | None:
    """``2.7`` of ``torch>=2.7,<3; extra == "gpu"``."""
    if not _is_about(requirement, "torch"):
        return None
    bounds = [version for _, version in _BOUND.findall(requirement.partition(";")[0])]
    return max(bounds, key=_numbers) if bounds else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
