"""A file as the tool sees it: its text, its syntax tree, and where things are in it."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from fsdp2lint.source.source.places import NEWLINE as NEWLINE
from fsdp2lint.source.source.places import Range as Range
from fsdp2lint.source.source.places import Unreadable as Unreadable
from fsdp2lint.system.derived import Derives
from fsdp2lint.system.files import NOTEBOOK as NOTEBOOK

if TYPE_CHECKING:
    import libcst as cst

    from fsdp2lint.source.source.positions import Positions
    from fsdp2lint.source.source.renewal import Renewal


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment with its place; ``alone`` is true when nothing else is on its line."""

    line: int
    column: int
    text: str
    alone: bool


_COMMENTED = re.compile(
    r'''("""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'''
    r"""|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|[ \t]*\#[^\n\r]*""",
    re.DOTALL,
)
"""Texts in quotes (the group), and comments."""
_EMPTY_LINES = re.compile(r"[ \t]*\n(?:[ \t]*\n)*")


def without_comments(text: str) -> str:
    """A program without its comments."""
    return _COMMENTED.sub(r"\1", text) if "#" in text else text


def _said(source: Source) -> str:
    said = _EMPTY_LINES.sub("\n", without_comments(source.text)).strip("\n")
    return source.text if said == source.text else said


class Source(Derives):
    """One file: ``path`` as the user named it, ``text`` decoded, newlines untouched.

    Of a ``document``, a notebook for example, the text is the program that it holds. What a reader of
    it sees are the :attr:`parts`: sources too, which know their ``cell`` and the ``physical`` lines of the
    file on which their own lines are.
    """

    is_settings = False
    """Whether it holds settings of a framework or commands, and no Python."""

    def __init__(
        self,
        path: str,
        text: str,
        *,
        encoding: str = "utf-8",
        bom: bool = False,
        document: Document | None = None,
        cell: int | None = None,
        physical: Sequence[int] = (),
    ) -> None:
        self.path = path
        self.text = text
        self.encoding = encoding
        self.bom = bom
        self.document = document
        self.cell = cell
        self.physical = physical
        self.followed = False
        """Whether it is read for what others import of it: most of its functions are never looked into."""
        self._next: Source | None = None

    def __repr__(self) -> str:
        return f"Source({self.path!r})"

    def with_text(self, text: str) -> Source:
        """The same file with another text; the same again for the last text, so that it is parsed once."""
        if self._next is None or self._next.text != text:
            encoding, bom, document = self.encoding, self.bom, self.document
            self._next = Source(self.path, text, encoding=encoding, bom=bom, document=document)
        return self._next

    def bare(self) -> Source:
        """The same text, of which nothing is known yet: for whoever keeps many texts."""
        encoding, bom, document = self.encoding, self.bom, self.document
        return Source(self.path, self.text, encoding=encoding, bom=bom, document=document)

    def kept(self) -> Source:
        """The file as it is now: the places of its nodes stay known when it gets another text."""
        self._positions  # noqa: B018  made now
        other = copy(self)
        other._derived = {}
        return other

    def become(self, new: Source) -> Renewal | None:
        """Take the text of ``new``, the next one of this file: nodes of what stays as it was are the same.

        None when more is different than bodies of functions and additions: then all nodes are new.
        """
        from fsdp2lint.source.source.renewal import renew

        change = renew(self, new)
        self._take(new.text)
        if change is not None and self.faithful:
            return change
        self._take(new.text)
        self.__dict__["tree"] = Source(self.path, new.text).tree if change else new.tree
        return None

    def become_another(self, text: str) -> None:
        """Take another text, of which nothing is known."""
        self._take(text)
        self.__dict__.pop("tree", None)

    def _take(self, text: str) -> None:
        """Let go of all that was made of the old text, but for its tree."""
        self.text = text
        self._next = None
        self.forget_derived()
        for name in ("parts", "_positions", "lines", "comments"):
            self.__dict__.pop(name, None)

    def encode(self, text: str) -> bytes:
        """The bytes of this file when its text is ``text``, in its encoding, with its byte order mark.

        Raises:
            UnicodeEncodeError: the encoding lacks a character.
            Unreadable: the text does not fall into the parts of the document any more.
        """
        if self.document is not None:
            text = self.document.text(text)
        return text.encode("utf-8-sig" if self.bom else self.encoding)

    @cached_property
    def parts(self) -> Sequence[Part]:
        """The parts of the document, in order; none of a file that is Python as a whole."""
        return () if self.document is None else self.document.parts(self)

    @cached_property
    def tree(self) -> cst.Module:
        """The libcst module.

        Raises:
            Unreadable: a syntax error, or nesting too deep for the parser.
        """
        from fsdp2lint.source.source.parsing import parse

        return parse(self)

    @property
    def is_parsed(self) -> bool:
        """Whether somebody has asked for the tree, and it is there."""
        return "tree" in self.__dict__

    def range(self, node: cst.CSTNode) -> Range:
        """Where ``node`` is in the text."""
        return self._positions.range(node) or Range(1, 1, 1, 1)

    @cached_property
    def _positions(self) -> Positions:
        from fsdp2lint.source.source.positions import Positions

        return Positions(self.tree)

    @property
    def faithful(self) -> bool:
        """Whether the tree gives back the text: only then do places mean anything."""
        return not self.text or self._positions.of(self.text)  # libcst gives an empty file a line

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their ends."""
        return NEWLINE.split(self.text)

    @property
    def said(self) -> str:
        """The text without its comments and empty lines: two texts that only differ in these mean the same.

        Who looks for words to learn what a file does looks here.
        """
        return self.derived(_said)

    def code(self, node: cst.CSTNode) -> str:
        """The text of ``node`` without comments, on one line."""
        return " ".join(without_comments(self.tree.code_for_node(node)).split())

    @cached_property
    def comments(self) -> tuple[Comment, ...]:
        """All comments, in order; what comes before a tokenize error if there is one."""
        found: list[Comment] = []
        text = io.StringIO(self.text, newline=None)  # a lone carriage return ends a line too
        try:
            for token in tokenize.generate_tokens(text.readline):
                if token.type == tokenize.COMMENT:
                    line, column = token.start
                    alone = not token.line[:column].strip()
                    found.append(Comment(line, column + 1, token.string, alone))
        except (tokenize.TokenError, SyntaxError):
            pass
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of a document as its reader sees it, and the line of the program on which it begins."""

    source: Source
    first: int


class Document(Protocol):
    """What a program comes from that is not a whole file."""

    def text(self, program: str) -> str:
        """The document with a changed program in it.

        Raises:
            Unreadable: the program does not fall into the parts of the document any more.
        """

    def parts(self, source: Source) -> Sequence[Part]:
        """The parts from which the program of a source was made."""

    def place(self, source: Source, at: Range) -> tuple[Source, Range]:
        """Where a span of the program stands for a reader of the document."""


@dataclass(slots=True, eq=False)
class Site:
    """A node in its file, with the statement it belongs to. Never changed; not frozen, since so many are made."""

    source: Source
    node: cst.CSTNode
    statement: cst.CSTNode

    @property
    def range(self) -> Range:
        """Where the node is."""
        return self.source.range(self.node)

    @property
    def line(self) -> int:
        """The line on which the node begins, 1-based."""
        return self.range.line

    @property
    def line_in_words(self) -> str:
        """``line 13``, or ``line 2 of cell 6`` in a notebook."""
        if self.source.document is None:
            return f"line {self.line}"
        source, at = self.source.document.place(self.source, self.range)
        return f"line {at.line}" + ("" if source.cell is None else f" of cell {source.cell}")

    @property
    def code(self) -> str:
        """The node's text, on one line."""
        return self.source.code(self.node)

    def __repr__(self) -> str:
        return f"Site({self.source.path}:{self.line} {self.code!r})"
