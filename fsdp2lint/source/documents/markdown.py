r"""Blocks of Python in a Markdown document, each a program of its own.

A document shows alternatives, the wrong way before the right one, parts of programs: its blocks are not
joined. What a block does know are the imports of the blocks above it, which readers have seen too: they
are above its own text, behind which a statement that does nothing is the border.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate

from markdown_it import MarkdownIt

from fsdp2lint.source.documents import magics
from fsdp2lint.source.documents.snippet import Snippet
from fsdp2lint.source.source import NEWLINE, Document, Part, Range, Source, Unreadable

_PARSER = MarkdownIt("commonmark").disable(["code", "inline", "text_join"])
"""Of the blocks of a document: what is inside a paragraph is not looked at, and four spaces are an indentation, as
in the notes of mkdocs."""

_LANGUAGE = re.compile(r"\s*(?:\{\s*\.?)?(?:code-(?:block|cell)\}\s*)?(?P<name>[\w-]*)")
_PYTHON = frozenset({"ipython", "ipython3", "py", "python", "python3"})
_BORDER = "...#:above:\n"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of Python: its lines without what is before them because of its place."""

    first: int
    """The line of the document on which it begins, counted from 1."""
    prefix: str
    """Its indentation in a list, or the mark of a quotation."""
    text: str
    start: int
    end: int
    """Where its lines are in the document."""


class Markdown(Document):
    """One block of a document, and how it goes back there."""

    def __init__(self, path: str, text: str, block: Block, above: str) -> None:
        self.whole = Source(path, text)
        self.block = block
        self._magics: list[str] = []
        head = f"{above}{_BORDER}" if above else ""
        self._head = head.replace("\n", "\r\n") if "\r\n" in block.text else head
        self.program = self._head + magics.hidden(block.text, self._magics)
        self._offset = block.first - 1 - self._head.count("\n")

    @property
    def snippet(self) -> Snippet:
        """The program as the bytes of a file."""
        made = Snippet(self.program.encode("utf-8", "surrogatepass"))
        made.document = self
        return made

    def holds(self, at: Range) -> bool:
        """Whether a place of the program is one of the block, not of the imports above it."""
        return at.line + self._offset >= self.block.first

    def text(self, program: str) -> str:
        """The document with a changed program in it: lines that stay keep their bytes."""
        if not program.startswith(self._head):
            raise Unreadable("the change would reach into the imports of another block")
        own = magics.shown(program[len(self._head) :], self._magics)
        text, block = self.whole.text, self.block
        before, after = lines_of(block.text), lines_of(own)
        there = lines_of(text[block.start : block.end])
        made: list[str] = []
        for kind, first, last, start, end in SequenceMatcher(
            None, before, after, autojunk=False
        ).get_opcodes():
            new = (self._prefixed(line) for line in after[start:end])
            made += there[first:last] if kind == "equal" else new
        return text[: block.start] + "".join(made) + text[block.end :]

    def parts(self, source: Source) -> Sequence[Part]:
        """The document, as which a reader sees the block."""
        text = self.text(source.text)
        whole = self.whole if text == self.whole.text else Source(self.whole.path, text)
        return (Part(whole, 1 - self._offset),)

    def place(self, source: Source, at: Range) -> tuple[Source, Range]:
        """The document, and the span in it."""
        (part,) = source.parts
        lines = part.source.lines
        start = self._in_document(lines, at.line, at.column)
        end = self._in_document(lines, at.end_line, at.end_column)
        return part.source, Range(*start, *max(start, end))

    def _prefixed(self, line: str) -> str:
        return self.block.prefix + line if line.strip() else line

    def _in_document(self, lines: Sequence[str], line: int, column: int) -> tuple[int, int]:
        number = max(line + self._offset, self.block.first)
        if number > len(lines):
            return len(lines), len(lines[-1]) + 1
        shift = len(self.block.prefix) if lines[number - 1].startswith(self.block.prefix) else 0
        return number, min(column + shift, len(lines[number - 1]) + 1)


def markdown(text: str, path: str) -> list[Markdown]:
    """The blocks of a document that are Python; what does not parse is no program."""
    found: list[Markdown] = []
    above: dict[str, None] = {}
    for block in blocks(text):
        made = Markdown(path, text, block, "".join(f"{line}\n" for line in above))
        own = magics.hidden(block.text, [])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(own)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        above.update(dict.fromkeys(_imports(tree)))
        found.append(made)
    return found


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks that say that they are Python, in lists and quotations too."""
    lines = lines_of(text)
    starts = [0, *accumulate(map(len, lines))]
    for token in _PARSER.parse(text):
        if token.type == "fence" and token.map is not None and _is_python(token.info):
            first, shown = token.map[0] + 1, lines_of(token.content)
            inner = lines[first : first + len(shown)]
            prefix = next(
                (_before(*both) for both in zip(inner, shown, strict=False) if both[1].strip()),
                None,
            )
            own = [_without(line, prefix or "") for line in inner]
            if prefix is not None and [_bare(line or "") for line in own] == [*map(_bare, shown)]:
                code = "".join(line or "" for line in own)
                yield Block(first + 1, prefix, code, starts[first], starts[first + len(shown)])


def _is_python(info: str) -> bool:
    language = _LANGUAGE.match(info)
    return language is not None and language["name"].lower() in _PYTHON


def _before(line: str, shown: str) -> str:
    """What is before the code on a line because of its place: an indentation, the mark of a quotation."""
    return _bare(line).removesuffix(_bare(shown))


def _bare(line: str) -> str:
    return line.rstrip("\r\n")


def lines_of(text: str) -> list[str]:
    """The lines with their ends; unlike ``splitlines``, no other character ends one."""
    ends = [match.end() for match in NEWLINE.finditer(text)]
    pieces = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    return [piece for piece in pieces if piece]


def _without(line: str, prefix: str) -> str | None:
    """A line without its prefix; None where it does not have it, so that nothing could go back."""
    if line.startswith(prefix):
        return line[len(prefix) :]
    ended = line.lstrip(" \t>")
    is_empty = not ended.strip() and prefix.startswith(line[: len(line) - len(ended)])
    return ended if is_empty else None


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if isinstance(node, ast.Import | ast.ImportFrom) and not future:
            yield ast.unparse(node)
