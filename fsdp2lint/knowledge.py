"""Load the folder ``rules/`` whole, and know its rules by code and by name."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from fsdp2lint.declare import Rule, declared


class BadKnowledge(Exception):
    """Two rules share a code or a name, or a module declares none."""


@cache
def rules() -> tuple[Rule, ...]:
    """All rules, by code.

    Raises:
        BadKnowledge: two rules of one code or name, or a module of the folder without a rule.
    """
    package = importlib.import_module("fsdp2lint.rules")
    found: list[Rule] = []
    for info in pkgutil.iter_modules(package.__path__, "fsdp2lint.rules."):
        if info.name.rpartition(".")[2].startswith("_"):
            continue
        importlib.import_module(info.name)
        if info.name not in declared:
            raise BadKnowledge(f"{info.name} declares no rule")
        found.append(declared[info.name])
    for key in ("code", "name"):
        values = [getattr(r, key) for r in found]
        twice = {v for v in values if values.count(v) > 1}
        if twice:
            raise BadKnowledge(f"two rules share the {key} {', '.join(sorted(twice))}")
    return tuple(sorted(found, key=lambda r: r.code))
