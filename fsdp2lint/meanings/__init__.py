"""What PyTorch calls do: one small file for each area, each fact with its source."""

from __future__ import annotations

import importlib
import pkgutil

_loaded: list[str] = []


def load() -> None:
    """Import every module of this package and of those below it, once, so that each registers its meanings."""
    if _loaded:
        return
    for name in sorted(found.name for found in pkgutil.walk_packages(__path__, f"{__name__}.")):
        importlib.import_module(name)
        _loaded.append(name)
