"""Reading and writing TOML, and the line of each key, which the parsers do not give."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOMLDecodeError: type[ValueError] = tomllib.TOMLDecodeError

_AT = re.compile(r"\s*\(at (?:line (?P<line>\d+), column \d+|end of document)\)$")
_PART = re.compile(
    r"""\s*(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>[^']*)'|(?P<bare>[\w-]+))\s*"""
)


def loads(text: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        TOMLDecodeError: the text is no TOML.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except RecursionError as error:
        raise TOMLDecodeError("nested too deeply") from error
    except TOMLDecodeError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise TOMLDecodeError(str(error)) from error
    return tables


def dumps(value: Any) -> str:
    """A value on one line of TOML."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(k)} = {dumps(v)}" for k, v in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(dumps, value))}]"
    return json.dumps(value, ensure_ascii=False)


def complaint(error: ValueError, text: str) -> tuple[str, int]:
    """What a parser said without the place, and the line."""
    said = str(error)
    match = _AT.search(said)
    if match is None:
        return said, 1
    return said[: match.start()], int(match["line"] or text.count("\n") + 1)


def line_of(text: str, path: Sequence[str]) -> int:
    """The line on which the key at ``path`` (or else the nearest table around it) begins; 1 for none."""
    best, depth = 1, 0
    for number, keys in _keys(text):
        shared = 0
        for one, other in zip(keys, path, strict=False):
            if one != other:
                break
            shared += 1
        if shared > depth:
            best, depth = number, shared
    return best


def _keys(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The tables and keys that begin a line, as whole paths."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            table = _dotted(stripped.lstrip("["))
            yield number, table
        elif "=" in stripped and not stripped.startswith("#"):
            yield number, (*table, *_dotted(stripped))


def _dotted(text: str) -> tuple[str, ...]:
    parts: list[str] = []
    at = 0
    while match := _PART.match(text, at):
        parts.append(match["double"] or match["single"] or match["bare"] or "")
        at = match.end()
        if not text.startswith(".", at):
            break
        at += 1
    return tuple(parts)
