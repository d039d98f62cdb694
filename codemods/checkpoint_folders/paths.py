"""The path of a checkpoint: the folder that stands for a file, and what else the program does with it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Edit,
    External,
    Inner,
    Literal,
    Part,
    Program,
    Rewrite,
    Source,
    Value,
    computed_from,
    dotted,
    name_for,
    options,
)

from .._common.loop_text import text_of

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".pkl", ".model")

_ASKING = ("os.path.exists", "os.path.isfile", ".exists", ".is_file")
_FILES = ("os.remove", "os.unlink", "os.rename", "os.replace", "os.path.getsize", "shutil.", "open")
_FILE_METHODS = (".unlink", ".rename", ".replace", ".stat", ".open", ".save", ".upload_file")
_SEARCHING = ("glob.", "os.listdir", "os.scandir", "os.walk")


def folder_text(source: Source, path: cst.BaseExpression) -> tuple[str, tuple[Edit, ...]]:
    """The folder of a checkpoint whose file ``path`` names: the same without the suffix."""
    text = text_of(source, path)
    last = _last(path)
    quoted = text_of(source, last)
    end = last.end if isinstance(last, cst.FormattedString) else quoted[-1:]
    if _is_quoted(last) and text.count(quoted) == 1:
        if quoted.endswith(tuple(suffix + end for suffix in SUFFIXES)):
            stem = os.path.splitext(quoted.removesuffix(end))[0] + end
            return text.replace(quoted, stem), ()
    name = name_for(source, path, "os", module=True)
    return f"{name.text}.path.splitext({text})[0]", name.edits


def _last(path: cst.BaseExpression) -> cst.BaseExpression:
    """The part of a path that ends it: behind a ``/`` or a ``+``, the last one of ``os.path.join``."""
    if isinstance(path, cst.BinaryOperation):
        return _last(path.right)
    if isinstance(path, cst.Call) and dotted(path.func).endswith("path.join") and path.args:
        return _last(path.args[-1].value)
    return path


def _is_quoted(node: cst.BaseExpression) -> bool:
    """Whether the end of a string is written."""
    if isinstance(node, cst.FormattedString):
        return bool(node.parts) and isinstance(node.parts[-1], cst.FormattedStringText)
    return isinstance(node, cst.SimpleString)


def used_as_files(program: Program, paths: set[Value]) -> Iterator[Called]:
    """Where the program treats such a path as a file: removes it, opens it."""
    names = {name for path in paths for name in _names(path)}
    for _, called in program.of(Called):
        if called.name.startswith((*_FILES, *_FILE_METHODS)):
            about = {*called.arguments, *called.keywords.values(), called.receiver} - {None}
            alike = any(name in names for one in about if one for name in _names(one))
            if alike or about & paths:
                yield called


def _names(path: Value) -> Iterator[str]:
    """The last part of a path as far as the script writes it, ``{}`` for what it puts in."""
    for one in options(path):
        name = os.path.basename(_written(one))
        if name.strip("{}"):
            yield name


def _written(value: Value) -> str:
    if isinstance(value, Literal) and isinstance(value.value, str):
        return value.value
    if not isinstance(value, Part):
        return "{}"
    if value.operation == "format":
        return str(value.operands[0])
    inside = value.made_of[1:]
    if value.operation in ("call", "/") and inside:
        return _written(inside[-1])
    if value.operation == "+":
        return _written(value.owner) + _written(inside[-1])
    return "{}"


def is_searched(value: Value | None) -> bool:
    """Whether a path is found by a search for files."""
    return value is not None and any(
        one.operation in (".glob", ".iterdir", ".rglob")
        or (isinstance(one, External) and one.name.startswith(_SEARCHING))
        for one in computed_from(value)
    )


def asked_for(program: Program, paths: set[Value]) -> Iterator[Edit]:
    """Questions whether the file is there, widened to its folder."""
    constants = {path.value for path in paths if isinstance(path, Literal)}
    seen: set[cst.CSTNode] = set()
    for _, called in program.of(Called):
        about = called.receiver if called.name.startswith(".") else called.argument(0, "path")
        same = about in paths or (isinstance(about, Literal) and about.value in constants)
        if called.name not in _ASKING or not same or called.at.node in seen:
            continue
        call = called.at.node
        seen.add(call)
        path = _path_of(call)
        if path is None or not isinstance(call, cst.Call):
            continue
        source = called.at.source
        folder, more = folder_text(source, path)
        name = name_for(source, call, "os", module=True)
        asked = f"{name.text}.path.isdir({folder})"
        yield Rewrite(source, call, _or(asked))
        yield from (*more, *name.edits)


def _or(asked: str) -> Callable[[Inner], str]:
    return lambda inner: f"{asked} or {inner.text}"


def _path_of(call: cst.CSTNode) -> cst.BaseExpression | None:
    if not isinstance(call, cst.Call):
        return None
    if call.args:
        return call.args[0].value
    return call.func.value if isinstance(call.func, cst.Attribute) else None
