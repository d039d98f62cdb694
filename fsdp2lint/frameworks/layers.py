"""The classes of layers that settings can name: those of transformers, and those that a project defines itself.

``layer_classes.txt`` has a line for each folder of transformers 5.23 (``transformers/models/*/modeling_*.py``): its classes whose names end
in ``Layer`` or ``Block`` or that are in a ``_no_split_modules``, and behind the colon its models, if all of their layers are among these: where
a file imports other models or builds one by AutoModel, none are named.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from fsdp2lint.system.discover import is_left_out, project_of
from fsdp2lint.system.files import Files

CLASSES = Path(__file__).with_name("layer_classes.txt")
MAX_FILES = 2_000
"""So many Python files of a project are searched for a class."""

_MOST_EDITS = 2
_SAME_PART = 0.6
"""How much of a name, from its begin, a misspelt one has in common with the right one: the model that it is of."""


@cache
def known() -> frozenset[str]:
    """The names of transformers' layers."""
    lines = CLASSES.read_text("utf-8").splitlines()
    return frozenset(name for line in lines for name in line.partition(":")[0].split())


@cache
def _layers_of_models() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for line in CLASSES.read_text("utf-8").splitlines():
        layers, _, models = line.partition(":")
        found |= dict.fromkeys(models.split(), frozenset(layers.split()))
    return found


def layers_of(model: str) -> frozenset[str] | None:
    """The names of the layers that a model of transformers can hold, by the name of its class; None where they are not known."""
    return _layers_of_models().get(model)


def is_named_as_layer(name: str) -> bool:
    """Whether the name of a class is that of a layer: all of those of a known model are known."""
    return name in known() or name.endswith(("Layer", "Block"))


def meant(name: str) -> str | None:
    """The layer of transformers that a name misspells: only its case, or one or two letters behind the name of the model.

    None for its own names, and for those that are like none of them: another library, or remote code, may have them.
    """
    if name in known():
        return None
    alike = [one for one in known() if one.lower() == name.lower()]
    alike = alike or [one for one in known() if _is_misspelt(name, one)]
    return alike[0] if len(alike) == 1 else None


def _is_misspelt(name: str, right: str) -> bool:
    if abs(len(name) - len(right)) > _MOST_EDITS:
        return False
    pairs = enumerate(zip(name, right, strict=False))
    same = next((n for n, (one, other) in pairs if one != other), min(len(name), len(right)))
    return same >= _SAME_PART * len(right) and _edits(name[same:], right[same:]) <= _MOST_EDITS


def _edits(one: str, other: str) -> int:
    """How many letters must be put in, taken out or exchanged."""
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, 1):
        last, row = row, [number]
        for at, there in enumerate(other, 1):
            row.append(min(last[at] + 1, row[-1] + 1, last[at - 1] + (letter != there)))
    return row[-1]


def may_be_defined(name: str, path: str, files: Files) -> bool:
    """Whether the project around a file defines a class of this name, or loads models with code from elsewhere."""
    return said_in_project(rf"\bclass\s+{re.escape(name)}\b|\btrust_remote_code\b", path, files)


def said_in_project(pattern: str, path: str, files: Files) -> bool:
    """Whether something is written in the Python files of the project around a file, or may be: large ones are not searched whole.

    A text that is no file is in no project.
    """
    if not os.path.isfile(path):
        return False
    folder = os.path.dirname(os.path.abspath(path))
    wanted = re.compile(pattern.encode())
    count = 0
    for current, inner, names in os.walk(project_of(folder) or folder):
        inner[:] = sorted(one for one in inner if not is_left_out(one, current))
        for one in (one for one in sorted(names) if one.endswith((".py", ".ipynb"))):
            count += 1
            if count > MAX_FILES:
                return True
            try:
                if wanted.search(files.read(os.path.join(current, one))):
                    return True
            except OSError:
                continue
    return False
