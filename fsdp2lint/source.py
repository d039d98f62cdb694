"""A file as the tool sees it: its text, its syntax tree, and where things stand in it."""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import libcst as cst

MAX_NESTING = 200
"""Bracket depth beyond which libcst's recursive parser is not trusted with a file."""


NEWLINE = re.compile(r"\r\n|\r|\n")
"""What ends a line of Python; ``str.splitlines`` splits at eight more characters."""


class Unreadable(Exception):
    """The file cannot be analysed; the message says why, ``line`` and ``column`` where (1-based)."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """A span of text; lines and columns are 1-based, columns count code points, the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment with its place; ``alone`` is true when nothing else stands on its line."""

    line: int
    column: int
    text: str
    alone: bool


class Source:
    """One file: ``path`` as the user named it, ``text`` decoded, newlines untouched."""

    def __init__(self, path: str, text: str, *, encoding: str = "utf-8", bom: bool = False) -> None:
        self.path = path
        self.text = text
        self.encoding = encoding
        self.bom = bom

    def __repr__(self) -> str:
        return f"Source({self.path!r})"

    @classmethod
    def read(cls, path: Path | str, shown: str | None = None) -> Source:
        """Read and decode a file (PEP 263 encodings, byte order mark).

        Raises:
            Unreadable: the file cannot be opened or decoded.
        """
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise Unreadable(f"cannot read the file: {error.strerror or error}") from error
        return cls.decode(raw, shown or str(path))

    @classmethod
    def decode(cls, raw: bytes, shown: str) -> Source:
        """Decode the bytes of a file named ``shown``.

        Raises:
            Unreadable: unknown or broken encoding, or a binary file.
        """
        if b"\0" in raw:
            raise Unreadable("not Python source: the file holds NUL bytes")
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
            text = raw.decode(encoding)
        except (SyntaxError, UnicodeDecodeError, LookupError) as error:
            raise Unreadable(f"cannot decode the file: {error}") from error
        bom = encoding == "utf-8-sig"
        return cls(shown, text, encoding="utf-8" if bom else encoding, bom=bom)

    def encode(self, text: str) -> bytes:
        """The bytes of ``text`` in this file's encoding, with its byte order mark."""
        return text.encode("utf-8-sig" if self.bom else self.encoding)

    @cached_property
    def tree(self) -> cst.Module:
        """The libcst module.

        Raises:
            Unreadable: a syntax error, or nesting too deep for the parser.
        """
        from fsdp2lint.parsing import parse

        return parse(self)

    def range(self, node: cst.CSTNode) -> Range:
        """Where ``node`` stands in the text."""
        return self._positions.get(node, Range(1, 1, 1, 1))

    @cached_property
    def _positions(self) -> dict[cst.CSTNode, Range]:
        from fsdp2lint.parsing import positions

        return positions(self.tree)

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their ends."""
        return NEWLINE.split(self.text)

    def code(self, node: cst.CSTNode) -> str:
        """The text of ``node``, on one line."""
        return " ".join(self.tree.code_for_node(node).split())

    @cached_property
    def comments(self) -> tuple[Comment, ...]:
        """All comments, in order; what comes before a tokenize error if there is one."""
        found: list[Comment] = []
        try:
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
                if token.type == tokenize.COMMENT:
                    line, column = token.start
                    alone = not token.line[:column].strip()
                    found.append(Comment(line, column + 1, token.string, alone))
        except (tokenize.TokenError, SyntaxError):
            pass
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A node in its file, with the statement it belongs to."""

    source: Source
    node: cst.CSTNode
    statement: cst.CSTNode

    @property
    def range(self) -> Range:
        """Where the node stands."""
        return self.source.range(self.node)

    @property
    def line(self) -> int:
        """The line on which the node begins, 1-based."""
        return self.range.line

    @property
    def code(self) -> str:
        """The node's text, on one line."""
        return self.source.code(self.node)

    def __repr__(self) -> str:
        return f"Site({self.source.path}:{self.line} {self.code!r})"
