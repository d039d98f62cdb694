"""What PyTorch calls do: one small file for each area, each fact with its source."""

from __future__ import annotations

import importlib
import pkgutil

_loaded: list[str] = []


def load() -> None:
    """Import every module of this package, once, so that each registers its meanings."""
    if _loaded:
        return
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name):
        importlib.import_module(f"{__name__}.{found.name}")
        _loaded.append(found.name)
