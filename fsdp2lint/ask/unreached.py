"""Files that nothing of their project runs or imports, such as a copy of a module that is meant for another place."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.source.walk import walk
from fsdp2lint.system.discover import PROJECT_MARKS, is_left_out
from fsdp2lint.system.files import read

if TYPE_CHECKING:
    from fsdp2lint.ask.program import Program
    from fsdp2lint.source.source import Source

NOT_RUN = "no run that was followed comes here"
"""Why a place that uses FSDP1 is left to a person, where nobody can say what comes to it."""

_ASKED_BY_NAME = ("__init__", "__main__", "conftest", "setup", "sitecustomize", "usercustomize")
"""Modules that Python or a tool loads although nobody names them."""
_RUNNING = {
    *".bash .bat .cfg .diff .dockerfile .gin .hcl .in .ini .ipynb .json .jsonnet .mk .patch .ps1 .py".split(),
    *".pyi .sbatch .sh .slurm .toml .txt .yaml .yml".split(),
    "",
}
"""The endings of files that can run or import another; prose names it for people, data does not name it."""

MAX_FILES = 20_000
"""In a project of more, nobody can tell in time what no file names."""
MAX_BYTES = 1 << 20


def is_unreached(program: Program, source: Source) -> bool:
    """Whether nothing that is resolved can run a file: it is no program, and no file of its project names it.

    A public module of a package is always reached: others may import it.
    """
    stem = Path(source.path).stem
    if stem in _ASKED_BY_NAME or stem.startswith("test") or not source.path.endswith(".py"):
        return False
    in_package = Path(source.path).with_name("__init__.py").exists()
    if (in_package and not stem.startswith("_")) or not _only_defines(source):
        return False
    return not program.derived(_is_named, source)


def _only_defines(source: Source) -> bool:
    """Whether a file does nothing when it runs but define names."""
    for line in source.tree.body:
        if isinstance(line, cst.SimpleStatementLine):
            if any(isinstance(one, cst.Expr) and _calls(one) for one in line.body):
                return False
        elif not isinstance(line, cst.FunctionDef | cst.ClassDef):
            return False
    return True


def _calls(node: cst.CSTNode) -> bool:
    return any(isinstance(one, cst.Call | cst.Await) for one in walk(node))


def _is_named(program: Program, source: Source) -> bool:
    """Whether another file of the project names a module; in a text for people that is no matter."""
    stem = Path(source.path).stem
    known = {os.path.abspath(one.path): one for one in (*program.sources, *program.texts)}
    word = re.compile(rf"(?<!\w){re.escape(stem)}(?!\w)".encode())
    around = list(islice(_files_around(program, source), MAX_FILES + 1))
    if len(around) > MAX_FILES:
        return True
    for path in {*known, *around}:
        if path == os.path.abspath(source.path):
            continue
        one = known.get(path)
        if one is not None and path.endswith(".py"):
            if stem in one.text and _names(one, stem):
                return True
        elif word.search(_read(path)) is not None:
            return True
    return False


def _names(source: Source, stem: str) -> bool:
    """Whether the code of a file names a module, or a text that can be its name."""
    for node in walk(source.tree):
        if isinstance(node, cst.Name) and node.value == stem:
            return True
        if isinstance(node, cst.SimpleString | cst.FormattedStringText):
            if stem in node.value and " " not in node.value:
                return True
    return False


def _files_around(program: Program, source: Source) -> Iterator[str]:
    """The files of a file's project and beside the program's others that can run something."""
    paths = [os.path.abspath(one.path) for one in program.sources]
    tops = {_project(os.path.abspath(source.path)), *map(os.path.dirname, paths)}
    for top in tops:
        if not any(other != top and Path(top).is_relative_to(other) for other in tops):
            for folder, folders, names in os.walk(top):
                folders[:] = [one for one in folders if not is_left_out(one, folder)]
                yield from (
                    os.path.join(folder, one)
                    for one in names
                    if os.path.splitext(one)[1].lower() in _RUNNING
                )


def _project(path: str) -> str:
    """The folder of the project that holds a file; its own folder where none is marked."""
    for folder in Path(path).parents:
        if any((folder / mark).exists() for mark in PROJECT_MARKS):
            return str(folder)
    return os.path.dirname(path)


def _read(path: str) -> bytes:
    try:
        return read(path)[:MAX_BYTES]
    except OSError:
        return b""
