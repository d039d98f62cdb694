"""Load the folders ``rules/`` and ``codemods/`` whole, and know what they hold by code and by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache

from fsdp2lint.declare import EVERY_OTHER, Codemod, Rule, declared, declared_codemods


class BadKnowledge(Exception):
    """Two rules share a code or a name, a module declares none, or codemods wait for each other."""


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, by code.

    Raises:
        BadKnowledge: two rules of one code or name, or a module of the folder without a rule.
    """
    found: list[Rule] = []
    for name in _modules("fsdp2lint.rules"):
        if name not in declared:
            raise BadKnowledge(f"{name} declares no rule")
        found.append(declared[name])
    for key in ("code", "name"):
        values = [getattr(r, key) for r in found]
        twice = {v for v in values if values.count(v) > 1}
        if twice:
            raise BadKnowledge(f"two rules share the {key} {', '.join(sorted(twice))}")
    return tuple(sorted(found, key=lambda r: r.code))


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
