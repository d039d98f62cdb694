"""Runs that lead into the files of a run from files that were not passed, as to a hook or an editor.

What is found in a module may be found only on the way from a program. Without the program nobody can say
that a comment silences nothing, or that an entry of a baseline is stale.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence

from fsdp2lint.project.links import Finder
from fsdp2lint.system.discover import (
    SUFFIXES,
    Exclusion,
    NoSuchPath,
    discover,
    project_of,
    project_roots,
)
from fsdp2lint.system.files import Files

MODULE = ".py"
"""What can be imported."""

MAX_ROUNDS = 3
"""So many imports away a file that was not passed is still looked for."""


def unsure(
    wanted: Iterable[str], passed: Collection[str], covered: Sequence[str], files: Files
) -> frozenset[str]:
    """Those of the ``wanted`` files that are imported, directly or not, by a file that was not ``passed``.

    All paths are absolute. Below the ``covered`` folders everything was passed.
    """
    modules = sorted({path for path in wanted if path.endswith(MODULE)})
    others = set(_beside(modules, covered)) - set(passed)
    if not others:
        return frozenset()
    finder = Finder(project_roots(modules), files, passed)
    reached = {path: {path} for path in modules}
    newest, found = set(modules), set[str]()
    for _ in range(MAX_ROUNDS):
        leading: dict[str, set[str]] = {}
        left = [path for path in (*others, *passed) if path not in reached]
        for path, targets in finder.importing(left, newest):
            leading[path] = {one for target in targets for one in reached[target]}
            if path in others:
                found |= leading[path]
                if len(found) == len(modules):
                    return frozenset(found)
        reached |= leading
        newest = set(leading)
    return frozenset(found)


def _beside(modules: Iterable[str], covered: Sequence[str]) -> Iterator[str]:
    """The Python files of the projects that hold the modules."""
    folders = dict.fromkeys(map(os.path.dirname, modules))
    for root, folder in {project_of(folder) or folder: folder for folder in folders}.items():
        if any(root == one or root.startswith(one.rstrip(os.sep) + os.sep) for one in covered):
            continue
        try:
            if project_of(folder) is not None:
                yield from discover([root], Exclusion())
            else:  # no project: what lies deeper may be anything
                names = sorted(os.listdir(root))
                yield from (os.path.join(root, name) for name in names if name.endswith(SUFFIXES))
        except (OSError, NoSuchPath):
            continue
