"""The one place through which text of others (names, code, messages) leaves for a terminal or a CI.

A terminal obeys control characters, and the log of a CI obeys lines that look like its commands
(https://docs.github.com/actions/reference/workflow-commands-for-github-actions). Both can be in the name of a
file, or in a script, of a project that comes from somebody else.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, TextIO

_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Those of ASCII and Latin-1 without tab and newline, and those of Unicode that turn the direction of text."""
_BREAK = re.compile(f"[\n{_CONTROLS}]")
_CONTROL_IN_LINES = re.compile(f"(?!\r\n)[{_CONTROLS}]")
_BREAK_IN_JSON = re.compile(f"(?!\n)[{_CONTROLS}]")
_LOOKS = r"\x1b\[[0-9;]*m|\x1b\]8;[^\x07\x1b]*(?:\x1b\\|\x07)"
"""Colours and links, which the program itself puts in."""
_CONTROL_BESIDE_LOOKS = re.compile(f"({_LOOKS})|(?!\r\n)[{_CONTROLS}]")

_COMMAND = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
_OLD_COMMAND = "##["


def one_line(text: str) -> str:
    """A name or a message as one line without control characters: they are shown by their numbers."""
    return text if text.isprintable() else _BREAK.sub(_number, text)


def lines(text: str) -> str:
    """Lines without control characters; tabs and ends of lines stay."""
    return _CONTROL_IN_LINES.sub(_number, text)


def no_command(text: str, opening: str = "## [") -> str:
    """Lines of which none is a command to a CI; ``opening`` stands for ``##[``, in the way of the format."""
    if "::" in text:
        text = _COMMAND.sub(r"\1\\:", text)
    return text.replace(_OLD_COMMAND, opening)


def in_json(text: str) -> str:
    """The text of a JSON document, which means the same, and in which nothing is obeyed by anybody."""
    return no_command(_BREAK_IN_JSON.sub(lambda m: f"\\u{ord(m[0]):04x}", text), "##\\u005b")


def encoded(data: Any) -> bytes:
    """Data as JSON; names of files that are not UTF-8 are shown by the numbers of their bytes."""
    import msgspec

    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(data)))


def _encodable(data: Any) -> Any:
    if isinstance(data, dict):
        return {_encodable(key): _encodable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_encodable(value) for value in data]
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return data


class Plain:
    """A stream to which text goes without control characters, but for colours if the user sees them."""

    def __init__(self, stream: TextIO, *, commands: bool) -> None:
        self._stream = stream
        self._commands = commands
        self._pattern = _CONTROL_BESIDE_LOOKS if _sees_colours(stream) else _CONTROL_IN_LINES

    def write(self, text: str) -> int:
        """Write a text as it may leave."""
        if not text.isascii() or not text.isprintable():
            text = self._pattern.sub(_number, text)
        return self._stream.write(text if self._commands else no_command(text))

    def with_commands(self) -> Plain:
        """The same stream, for a format that is made of commands to a CI."""
        return Plain(self._stream, commands=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_streams() -> None:
    """Let what is printed from here on leave through :class:`Plain`.

    Standard error on a terminal is left out: the progress that is shown there moves the cursor.
    """
    sys.stdout = Plain(sys.stdout, commands=False)
    if not sys.stderr.isatty():
        sys.stderr = Plain(sys.stderr, commands=False)


def _sees_colours(stream: TextIO) -> bool:
    wanted = os.environ.get("FORCE_COLOR") or any("always" in word for word in sys.argv[1:])
    return bool(wanted) or stream.isatty()


def _number(match: re.Match[str]) -> str:
    if match.lastindex:
        return match[0]
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def count(number: int, noun: str) -> str:
    """``1 error``, ``2 errors``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
