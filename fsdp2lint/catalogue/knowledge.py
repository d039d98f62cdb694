"""Load the folders ``rules/`` and ``codemods/`` whole, and know what they hold by code and by name."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from fsdp2lint.catalogue.declare import (
    EVERY_OTHER,
    OWN,
    Codemod,
    Group,
    Rule,
    declared,
    declared_codemods,
)
from fsdp2lint.config.settings import BadSetting, Plugin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "fsdp2lint.rules"
"""The group of entry points under which installed packages offer rules."""


MAX_PLUGIN_FILES = 1_000
"""Python files of a plugin that are searched for a word of ours."""


class BadKnowledge(Exception):
    """Two rules share a code or a name, a module declares none, or codemods wait for each other."""


@cache
def rules(plugins: tuple[Plugin, ...] = ()) -> tuple[Rule, ...]:
    """All rules, with those from outside, by code.

    Raises:
        BadKnowledge: two rules of one code or name, or a module of the folder without a rule.
        BadSetting: a plugin cannot be imported, or holds no rule that can run beside the others.
    """
    if plugins:
        known = list(rules())
        for plugin in plugins:
            known += _rules_of(plugin, known)
        return tuple(sorted(known, key=lambda r: r.code))
    found: list[Rule] = []
    for family in _modules("fsdp2lint.rules"):
        for name in _modules(family):
            if name not in declared:
                raise BadKnowledge(f"{name} declares no rule")
            found.append(declared[name])
    for key in ("code", "name"):
        values = [getattr(r, key) for r in found]
        twice = {v for v in values if values.count(v) > 1}
        if twice:
            raise BadKnowledge(f"two rules share the {key} {', '.join(sorted(twice))}")
    return tuple(sorted(found, key=lambda r: r.code))


def plugins(names: Sequence[str]) -> tuple[Plugin, ...]:
    """The installed modules that these names of entry points or modules mean.

    Raises:
        BadSetting: nothing of that name is installed.
    """
    offered = _entry_points()
    modules: dict[str, str] = {}
    for name in names:
        if name == "*":
            modules |= {one.module: name for one in offered}
        else:
            meant = [one.module for one in offered if one.name == name] or [name]
            modules |= dict.fromkeys(meant, name)
    return tuple(Plugin(name, module, _mark(module, name)) for module, name in modules.items())


def _entry_points() -> Sequence[EntryPoint]:
    from importlib import metadata

    with _installed():
        return sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda one: one.value)


@cache
def _mark(module: str, name: str) -> str:
    """A mark of the Python files of the package in which a module is, and so of what its rules do."""
    from hashlib import blake2b

    top = module.partition(".")[0]
    try:
        with _installed():
            spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        said = (
            f"no module `{top}` is installed beside fsdp2lint, and no entry point of {ENTRY_POINTS}"
        )
        raise BadSetting(f"`{name}`: {said} has this name", name)
    if not _may_declare(module, spec.submodule_search_locations or [spec.origin or ""]):
        raise BadSetting(f"plugin `{module}` declares no rule", name)
    mark = blake2b(digest_size=16)
    for path in _files(spec.submodule_search_locations or [spec.origin or ""]):
        found = os.stat(path)
        mark.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode("utf-8", "replace"))
    return mark.hexdigest()


def _may_declare(module: str, places: Sequence[str]) -> bool:
    """Whether a module, or one inside of it, mentions us at all: one that does not is never imported.

    The configuration of somebody else's project could name any module that is installed, and importing some of
    them opens a browser or starts a program.
    """
    top, *inner = module.split(".")
    if top == "fsdp2lint":
        return False
    below = [os.path.join(place, *inner) for place in places] if inner else places
    files = islice(_files([*(f"{path}.py" for path in below), *below]), MAX_PLUGIN_FILES)
    return any(b"fsdp2lint" in Path(path).read_bytes() for path in files)


def _files(places: Sequence[str]) -> Iterator[str]:
    for place in places:
        if os.path.isfile(place):
            yield place
        for folder, inside, names in os.walk(place):
            inside.sort()
            yield from (os.path.join(folder, n) for n in sorted(names) if n.endswith(".py"))


def _rules_of(plugin: Plugin, known: Sequence[Rule]) -> list[Rule]:
    """The rules of a plugin: of the module itself, or of each public module of the package."""
    try:
        with _installed():
            module = importlib.import_module(plugin.module)
            inside = list(_modules(plugin.module)) if hasattr(module, "__path__") else []
    except (Exception, SystemExit) as error:  # whatever it does, it is the plugin's doing
        first = (str(error).splitlines() or [""])[0]
        said = f"`{plugin.module}` cannot be imported: {type(error).__name__}: {first}"
        raise BadSetting(f"plugin {said}", plugin.name) from error
    found = [declared[name] for name in (plugin.module, *inside) if name in declared]
    wrong = "" if found else "declares no rule"
    for n, rule in enumerate(found):
        wrong = wrong or _wrong(rule, [*known, *found[:n]])
    if wrong:
        raise BadSetting(f"plugin `{plugin.module}` {wrong}", plugin.name)
    return found


def _wrong(rule: Rule, others: Sequence[Rule]) -> str:
    """Why a rule from outside cannot run; empty when it can."""
    if not re.fullmatch(r"[A-Z]{2,}\d{3}", rule.code) or rule.code.startswith(OWN):
        return f"has a rule `{rule.code}`: a code is letters of its own and three digits, such as ACME001"
    if rule.group not in get_args(Group):
        return f"has the rule {rule.code} in a group `{rule.group}` that does not exist"
    if not rule.page.strip():
        return f"has the rule {rule.code} without a page: write the docstring of its module"
    for other in others:
        if rule.code == other.code or rule.name == other.name:
            return (
                f"has the rule {rule.code} {rule.name}, which {other.code} {other.name} is already"
            )
    return ""


@contextmanager
def _installed() -> Iterator[None]:
    """The import path without the folder that ``python -m`` puts first: what is checked is never imported."""
    before = list(sys.path)
    if sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(os.getcwd()):
        del sys.path[0]
    try:
        yield
    finally:
        sys.path[:] = before


@cache
def codemods() -> tuple[Codemod, ...]:
    """All codemods in the order in which they run: each after those that it names, else by name.

    Raises:
        BadKnowledge: a module of the folder without a codemod, an unknown name in ``after``, or a circle.
    """
    found: dict[str, Codemod] = {}
    for name in _modules("fsdp2lint.codemods"):
        if name not in declared_codemods:
            raise BadKnowledge(f"{name} declares no codemod")
        found[declared_codemods[name].name] = declared_codemods[name]
    early = {name for name, one in found.items() if EVERY_OTHER not in one.after}
    wanted = {
        name: (set(one.after) - {EVERY_OTHER}) | (set() if name in early else early)
        for name, one in found.items()
    }
    ordered: list[Codemod] = []
    waiting = sorted(found)
    while waiting:
        done = {one.name for one in ordered}
        ready = next((name for name in waiting if done >= wanted[name]), None)
        if ready is None:
            raise BadKnowledge(f"these codemods wait for each other: {', '.join(waiting)}")
        waiting.remove(ready)
        ordered.append(found[ready])
    return tuple(ordered)


def _modules(package: str) -> Iterator[str]:
    """The names of the public modules of a package, each imported."""
    folder = importlib.import_module(package)
    for info in pkgutil.iter_modules(folder.__path__, f"{package}."):
        if not info.name.rpartition(".")[2].startswith("_"):
            importlib.import_module(info.name)
            yield info.name
