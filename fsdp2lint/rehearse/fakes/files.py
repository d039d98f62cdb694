"""Files and folders of data that are not there: rows, texts, tokens and pictures in their place, by how they are named.

Only what the program itself reads is answered, and only where it is not ready to go without (``except OSError``). Its
source says which columns rows have, and in which format it wants tokens.
"""

from __future__ import annotations

import ast
import builtins
import functools
import glob
import importlib
import inspect
import io
import json
import os
import re
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fsdp2lint.rehearse.fakes import downloads, images
from fsdp2lint.rehearse.fakes.arrays import TOKENS, noise
from fsdp2lint.rehearse.fakes.data_sets import value
from fsdp2lint.rehearse.fakes.imports import (
    asked_by_the_program,
    caught,
    ends_without,
    is_own,
    nodes_of,
    own_files,
    own_frames,
    source_of,
)
from fsdp2lint.rehearse.fakes.texts import sentence
from fsdp2lint.rehearse.standin.replace import Counted, Function, wrap

MAGIC = 20240520
"""The first number of a file of tokens as llm.c writes them: 256 numbers of 32 bits, then tokens of 16 bits."""
ROWS = 1_200
"""In a file: programs set aside hundreds of them for validation, at times a thousand."""
LISTED = 64
PICTURES = (".jpg", ".jpeg", ".png")
_FOUND = (".bin", ".jsonl", ".ndjson", ".csv", ".tsv", *downloads.ENDS)
"""Files that programs look for by a pattern and need; of others, as checkpoints, there may be none."""
_DATA = (*_FOUND, ".json", ".parquet", ".arrow")
_FOLDER = re.compile(r"data|train|valid|test|corpus|texts|images|pictures", re.I)
_FIELD = re.compile(r"(?<!\{)\{([A-Za-z_]\w*)\}(?!\})")
_PANDAS = ("read_csv", "read_table", "read_json", "read_parquet")
_MISSING = ("FileNotFoundError", "OSError", "IOError", "EnvironmentError", "Exception", "BaseException")  # fmt: skip
_NO_DATA = re.compile(
    r"config|args|setting|state|index|vocab|meta|token(?!iz|s)|map|secret|key|template|model", re.I
)
"""What files are called that hold no rows, texts or tokens, whatever their ending."""
_SETTINGS = re.compile(r"(^|[\\/])(conf|configs?|settings)([\\/]|$)", re.I)
_READING = ("pathlib", "codecs", "glob", "io", "gzip", "_io", __name__)
"""Modules that read for others."""


def install(counted: Counted, folder: str) -> None:
    """Answer from here on; what is made up lies in ``folder``, which the ranks share."""
    made = MadeUp(counted, folder)
    opened = _opening(builtins.open, made)
    builtins.open = io.open = opened
    wrap(os, "listdir", lambda listed: _listing(listed, made))
    wrap(glob, "glob", lambda found: _finding(found, made))
    for name in ("glob", "rglob"):
        wrap(Path, name, lambda found: _finding_below(found, made))
    for owner, names in (
        (os.path, ("exists", "isfile", "isdir")),
        (Path, ("exists", "is_file", "is_dir")),
    ):
        for name in names:
            wrap(owner, name, lambda asks: _asking(asks, made))


def install_pandas(counted: Counted) -> None:
    """Tables that ``pandas`` cannot find."""
    package: Any = importlib.import_module("pandas")
    for name in _PANDAS:
        wrap(package, name, lambda read: _table(read, counted))


def install_pictures(counted: Counted) -> None:
    """Pictures that ``PIL`` cannot find."""
    module: Any = importlib.import_module("PIL.Image")
    wrap(module, "open", lambda opened: _picture(opened, counted))


class MadeUp:
    """The files that were made up."""

    def __init__(self, counted: Counted, folder: str) -> None:
        self.counted, self._folder = counted, Path(folder, "made-up")
        self._listed: set[str] = set()

    def names(self, folder: str) -> list[str]:
        """The files of a folder that is missing."""
        self._listed.add(os.path.normpath(folder))
        ending = ".jpg" if _looks_at_pictures() else ".txt"
        self.counted.note(f"made up: {os.path.join(folder, '*')}{ending}")
        return [f"{('cat', 'dog')[n % 2]}_{n}{ending}" for n in range(LISTED)]

    def file(self, path: str) -> str | None:
        """A file in the place of one that is missing, where its name says what is in it."""
        if os.path.normpath(os.path.dirname(path)) in self._listed:  # one text of many
            content: bytes | None = sentence(zlib.crc32(path.encode()), 40).encode()
        else:
            content = content_of(path)
        if content is None:
            return None
        self.counted.note(f"made up: {path}")
        made = self._folder / re.sub(r"\W+", "_", os.path.dirname(path)) / os.path.basename(path)
        if not made.exists():  # another rank may make the same
            made.parent.mkdir(parents=True, exist_ok=True)
            passing = made.with_name(f"{made.name}.{os.getpid()}")
            passing.write_bytes(content)
            passing.replace(made)
        return str(made)


def content_of(path: str) -> bytes | None:
    """What a file of data holds, by its ending; None where that does not say it."""
    stem, ending = os.path.splitext(os.path.basename(path).lower())
    if ending in downloads.ENDS:
        return downloads.text()
    if _NO_DATA.search(stem) or _SETTINGS.search(os.path.dirname(path)):
        return None
    if ending in PICTURES:
        return images.encoded(path)
    if ending == ".bin":
        return _tokens()
    if ending in (".json", ".jsonl", ".ndjson"):
        rows = [json.dumps(row) for row in _rows()]
        whole = ending == ".json" and not _reads_lines()
        return ("[" + ",\n".join(rows) + "]" if whole else "\n".join(rows) + "\n").encode()
    if ending in (".csv", ".tsv"):
        between = "," if ending == ".csv" else "\t"
        lines = [_columns(), *([row[name] for name in _columns()] for row in _rows())]
        return "".join(between.join(map(str, line)) + "\n" for line in lines).encode()
    return None


def _reads_lines() -> bool:
    """Whether the function of the program that reads now takes one value from each line."""
    reader = next(own_frames(), None)
    try:
        source = inspect.getsource(reader.f_code) if reader is not None else ""
    except OSError:
        return False
    return "loads(" in source and re.search(r"\bload\(", source) is None


def _tokens() -> bytes | None:
    """Tokens as the program reads them; nothing where its source does not say how."""
    sources = "".join(map(source_of, own_files()))
    said = re.search(r"uint16|uint32", sources)
    if str(MAGIC) in sources:
        return struct.pack("<256i", MAGIC, 1, TOKENS, *[0] * 253) + bytes(noise("uint16", TOKENS))
    return bytes(noise(said[0], TOKENS)) if said else None


def _rows() -> Iterator[dict[str, Any]]:
    names = _columns()
    return ({name: value(name, number) for name in names} for number in range(ROWS))


def _columns() -> list[str]:
    """The columns that the program asks rows for."""
    found = dict.fromkeys(name for file in own_files() for name in _asked(file))
    return list(found) or ["text"]


@functools.cache
def _asked(file: str) -> tuple[str, ...]:
    """Names in ``row["name"]``, ``row.get("name")`` and ``assert "name" in row``, and in templates that rows are put into."""
    found: list[ast.expr] = []
    for node in nodes_of(file):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            found.append(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            found += [node.args[0]] * (node.func.attr == "get")
        elif isinstance(node, ast.Assert):
            tests = (one for one in ast.walk(node.test) if isinstance(one, ast.Compare))
            found += [one.left for one in tests if isinstance(one.ops[0], ast.In)]
    names = [one.value for one in found if isinstance(one, ast.Constant)]
    if any(map(_fills_with_a_row, nodes_of(file))):
        texts = [node.value for node in nodes_of(file) if isinstance(node, ast.Constant)]
        names += [n for text in texts if isinstance(text, str) for n in _FIELD.findall(text)]
    return tuple(name for name in names if isinstance(name, str) and name.isidentifier())


def _fills_with_a_row(node: ast.AST) -> bool:
    """``template.format_map(row)`` or ``template.format(**row)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    named = [keyword.arg for keyword in node.keywords]
    return node.func.attr == "format_map" or (node.func.attr == "format" and None in named)


def _wanted() -> bool:
    """Whether the program itself reads now, and ends if that fails."""
    if not asked_by_the_program(_READING, depth=2):
        return False
    return not any(caught(one, _MISSING) for one in own_frames())


def _opening(read: Function, made: MadeUp) -> Function:
    @functools.wraps(read)
    def opened(file: Any, mode: str = "r", *args: Any, **how: Any) -> Any:
        try:
            return read(file, mode, *args, **how)
        except FileNotFoundError:
            reads = not set(mode) & set("wax+") and isinstance(file, str | os.PathLike)
            instead = made.file(os.fsdecode(file)) if reads and _wanted() else None
            if instead is None:
                raise
            return read(instead, mode, *args, **how)

    return opened


def _asking(asks: Function, made: MadeUp) -> Function:
    @functools.wraps(asks)
    def there(path: Any, *args: Any, **how: Any) -> Any:
        if asks(path, *args, **how):
            return True
        asker = sys._getframe(1)
        if not is_own(asker.f_code.co_filename) or not ends_without(asker):
            return False
        if not isinstance(path, str | os.PathLike) or not names_data(os.fsdecode(path)):
            return False
        made.counted.note(f"made up: {path}")
        return True

    return there


def names_data(path: str) -> bool:
    """Whether a path says of itself that data lie there: by its ending, or a folder by its name."""
    stem, ending = os.path.splitext(os.path.basename(os.path.normpath(path)))
    if _NO_DATA.search(stem) or _SETTINGS.search(os.path.dirname(path)):
        return False
    if re.fullmatch(r"\.[a-z]\w*", ending, re.I):
        return ending.lower() in _DATA
    return _FOLDER.search(path) is not None


def _listing(listed: Function, made: MadeUp) -> Function:
    def names(path: Any = None) -> Any:
        try:
            return listed(path)
        except FileNotFoundError:
            if not isinstance(path, str | os.PathLike) or not _wanted():
                raise
            return made.names(os.fsdecode(path))

    return names


def _finding(found: Function, made: MadeUp) -> Function:
    def paths(pathname: Any, *args: Any, **how: Any) -> Any:
        there = found(pathname, *args, **how)
        if there or not isinstance(pathname, str) or not glob.has_magic(pathname):
            return there
        if not pathname.endswith(_FOUND) or not _wanted():
            return there
        one = made.file(re.sub(r"[^\w./-]+", "0", pathname))
        return there if one is None else [one]

    return paths


def _finding_below(found: Function, made: MadeUp) -> Function:
    def paths(self: Path, pattern: Any, *args: Any, **how: Any) -> Iterator[Path]:
        there = list(found(self, pattern, *args, **how))
        if there or not str(pattern).endswith(_FOUND) or not _wanted():
            return iter(there)
        one = made.file(re.sub(r"[^\w./-]+", "0", str(self / pattern)))
        return iter(there if one is None else [Path(one)])

    return paths


def _looks_at_pictures() -> bool:
    """Whether a module of the program has imported what reads pictures."""
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", {})
        if "PIL" in held or "Image" in held or "cv2" in held or "imageio" in held:
            if is_own(str(held.get("__file__", "<"))):
                return True
    return False


def _table(read: Function, counted: Counted) -> Function:
    def table(path: Any, *args: Any, **how: Any) -> Any:
        try:
            return read(path, *args, **how)
        except FileNotFoundError:
            if not _wanted():
                raise
            counted.note(f"made up: {path}")
            return importlib.import_module("pandas").DataFrame(_rows())

    return table


def _picture(opened: Function, counted: Counted) -> Function:
    def picture(file: Any, *args: Any, **how: Any) -> Any:
        try:
            return opened(file, *args, **how)
        except FileNotFoundError:
            path = os.fsdecode(file)
            if not path.lower().endswith(PICTURES):
                raise
            counted.note("made up: pictures")
            return images.noise(path)

    return picture
