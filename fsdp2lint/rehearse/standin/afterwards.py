"""Functions that are called when the script has imported a package: importing it ourselves would take seconds, or fail."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any


def after(package: str, call: Callable[[], None], first: Callable[[], None] = lambda: None) -> None:
    """Call a function when a package is imported, or now if it is; ``first`` before it is."""
    if package in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Afterwards(package, call, first))


class _Afterwards(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, call: Callable[[], None], first: Callable[[], None]) -> None:
        self._name, self._call, self._first = name, call, first
        self._asking = False

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the others find, with a loader that calls the function; often only asked whether it is there."""
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is None or spec.loader is None or getattr(spec.loader, "makes_up", False):
            return spec  # what is made up has nothing to wrap
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._first()
            execute(module)
            self._call()

        loader.exec_module = exec_module
        return spec
