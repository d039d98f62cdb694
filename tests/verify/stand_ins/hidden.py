"""Packages that a test machine may have and that a fixture is to do without."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

NAMES = ("wandb", "datasets", "tiktoken", "torchvision", "tensorboard")


class _Finder:
    """Python's finder, which does not find some."""

    def find_spec(self, name: str, *where: Any) -> ModuleSpec | None:
        return None if name.partition(".")[0] in NAMES else PathFinder.find_spec(name, *where)


def hide() -> None:
    """Have Python find none of them from here on."""
    sys.meta_path[sys.meta_path.index(PathFinder)] = _Finder()
