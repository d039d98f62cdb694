"""Which files put classes or functions into a registry of the project when they are imported, read from their text."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsdp2lint.project.project import Project
    from fsdp2lint.source.source import Source

_REGISTERING = re.compile(
    r"^(?:@(\w+)|(\w+)\[[^\]\n]+\][ \t]*=(?!=)|(\w*regist\w*)\(|(\w+)(?:\.\w+)*\.\w*regist\w*\()",
    re.MULTILINE | re.IGNORECASE,
)
"""``@MODELS.register("gpt")``, ``MODELS["gpt"] = GPT`` and ``MODELS.register(GPT)`` at the margin of a file."""

_IMPORTED = re.compile(
    r"^(?:from[ \t]+(?P<origin>[.\w]+)[ \t]+import[ \t]+(?P<names>\([^)]*\)|[^\n;#]*)"
    r"|import[ \t]+(?P<plain>[^\n;#]*))",
    re.MULTILINE,
)


def registers_when_imported(project: Project, path: str, depth: int = 0) -> bool:
    """Whether the file at ``path`` registers something of its own, or is a package that imports files that do."""
    known = project.registering.get(path)
    if known is None:
        project.registering[path] = False  # packages import each other
        source = project.passed_through(path)
        known = source is not None and (
            _registers(project, source)
            or (
                os.path.basename(path) == "__init__.py"
                and depth < 3
                and any(
                    registers_when_imported(project, one, depth + 1)
                    for one in project.imported_by(source)
                )
            )
        )
        project.registering[path] = known
    return known


def packages_of(project: Project, path: str) -> list[str]:
    """The ``__init__.py`` files that Python runs before it imports ``path``, the outermost first."""
    found: list[str] = []
    folder = os.path.dirname(path)
    if os.path.basename(path) == "__init__.py":
        folder = os.path.dirname(folder)
    while project.files.is_file(os.path.join(folder, "__init__.py")):
        found.insert(0, os.path.join(folder, "__init__.py"))
        folder = os.path.dirname(folder)
    return found


def _registers(project: Project, source: Source) -> bool:
    roots = {name for names in _REGISTERING.findall(source.said) for name in names if name}
    return bool(roots) and any(
        not roots.isdisjoint(bound) and project.resolve(dotted, level, source) is not None
        for level, dotted, bound in _imports(source.said)
    )


def _imports(text: str) -> list[tuple[int, str, set[str]]]:
    """The modules that a text imports from, each as level, dotted name, and the names that it binds."""
    found = []
    for match in _IMPORTED.finditer(text):
        if match["plain"] is not None:
            for one in match["plain"].split(","):
                dotted, _, alias = (part.strip() for part in one.partition(" as "))
                found.append((0, dotted, {alias or dotted.partition(".")[0]}))
            continue
        origin = match["origin"]
        names = re.sub(r"#[^\n]*", "", match["names"]).strip("()\\ \t\n").split(",")
        bound = {one.rpartition(" as ")[2].strip() for one in names}
        found.append((len(origin) - len(origin.lstrip(".")), origin.lstrip("."), bound))
    return found
