"""Paths as services want them: from the top of the checkout, wherever the program was started."""

from __future__ import annotations

import os


def from_top(path: str, variable: str) -> str:
    """A path from the folder that an environment variable names; from here when it lies elsewhere."""
    top = os.environ.get(variable)
    relative = os.path.relpath(os.path.abspath(path), os.path.realpath(top)) if top else ""
    if not relative or relative.split(os.sep)[0] == os.pardir:
        relative = os.path.normpath(path)
    return relative.replace(os.sep, "/")
