"""The one place that asks libcst to parse."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from fsdp2lint.source.deferred import in_pieces, outlined
from fsdp2lint.source.source.places import MAX_NESTING, Unreadable

if TYPE_CHECKING:
    from fsdp2lint.source.source import Source


LONG = 50_000
"""Longer texts are parsed in pieces: for 300 kB at once libcst takes 120 MB, and Python keeps most of it."""

_POSITION = re.compile(r"^\w+ error: (?:error at \d+:\d+: )?")
"""What is before libcst's words; the position is that of the token behind the wrong one."""


def parse(source: Source) -> cst.Module:
    """Parse a source; what libcst cannot take becomes :class:`Unreadable`, never a crash."""
    text = source.text.replace("\r\n", "\n").replace("\r", "\n")  # a comment ends at each of them
    depth_line = _too_deep(text)
    if depth_line:
        raise Unreadable("nested too deeply to be analysed", depth_line)
    chain_line = _too_long(text)
    if chain_line:
        raise Unreadable(
            f"an expression of more than {MAX_CHAIN:,} words is too long to be analysed", chain_line
        )
    crowded_line = _too_crowded(text)
    if crowded_line:
        raise Unreadable(
            f"more than {MAX_ON_A_LINE} statements on one line are too many to be analysed",
            crowded_line,
        )
    try:
        tree = _in_parts(source) or _module(source.text)
    except cst.ParserSyntaxError as error:
        raise _syntax_error(source.text, error) from error
    except RecursionError as error:
        raise Unreadable("nested too deeply to be analysed") from error
    except Exception as error:  # libcst lets several exception types out of its native parser
        raise Unreadable(f"the parser failed: {type(error).__name__}: {error}") from error
    return tree


def _in_parts(source: Source) -> cst.Module | None:
    """The tree of a file that is better not parsed at once."""
    if source.followed:
        return outlined(source.text, _module)
    return in_pieces(source.text, _module) if len(source.text) > LONG else None


def _module(text: str) -> cst.Module:
    """The tree of a text.

    libcst's nodes check what they are given as they are made. What its own parser gives them needs no
    check, and takes a fifth less time without. Half of the nodes are spaces and ends of lines: one that is
    like another is the same object, which saves another seventh, and a quarter of the memory.
    """
    checked = cst.CSTNode.__post_init__
    try:
        setattr(cst.CSTNode, "__post_init__", _unchecked)  # noqa: B010  a method cannot be assigned to
        for name, (_, shared) in _SHARED.items():
            setattr(cst, name, shared)
        return cst.parse_module(text)
    finally:
        setattr(cst.CSTNode, "__post_init__", checked)  # noqa: B010
        for name, (plain, _) in _SHARED.items():
            setattr(cst, name, plain)


_SHARED = {
    kind.__name__: (kind, lru_cache(maxsize=512)(kind))
    for kind in (cst.SimpleWhitespace, cst.Newline, cst.TrailingWhitespace)
}
"""Nodes that are never looked for: their classes, and what libcst's parser makes them by."""


def _unchecked(node: cst.CSTNode) -> None:
    """In place of the check."""


def _syntax_error(text: str, error: cst.ParserSyntaxError) -> Unreadable:
    """What is wrong, and where: Python's own parser says both better, where it refuses the text too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as own:
        return Unreadable(f"syntax error: {own.msg}", own.lineno or 1, max(own.offset or 1, 1))
    except (ValueError, RecursionError, MemoryError):
        pass
    said = _POSITION.sub("", error.message.splitlines()[0])
    return Unreadable(f"syntax error: {said}", error.editor_line, error.editor_column)


MAX_CHAIN = 1_500
"""Words of one expression, those in brackets not counted: libcst's parser takes time by the square of their number, or
by its cube, and memory for each."""

_WORD = re.compile(
    r"(?P<string>(?:\b[A-Za-z]{1,2})?(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''"
    r"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'))"
    r"|(?P<comment>#[^\n]*)|(?P<word>\w+)|(?P<end>\n)|(?P<joined>\\\r?\n)|(?P<space>[ \t\r\f]+)"
    r"|(?P<sign>.)",
    re.DOTALL,
)


def _too_long(text: str) -> int:
    """The first line on which an expression is longer than the parser can take in time, or 0."""
    for first, statement in _long_statements(text):
        line, counts = first, [0]
        for match in _WORD.finditer(statement):
            kind, word = match.lastgroup, match[0]
            if kind == "end" and len(counts) == 1:
                counts[-1] = 0
            elif kind == "sign" and word in "([{":
                counts[-1] += 1
                counts.append(0)
            elif kind == "sign" and word in ")]}":
                if len(counts) > 1:
                    counts.pop()
            elif kind == "sign" and word in ",;":
                counts[-1] = 0
            elif kind in ("word", "sign"):
                counts[-1] += 1
            if counts[-1] > MAX_CHAIN:
                return line
            line += word.count("\n")
    return 0


MAX_ON_A_LINE = 100
"""Statements of one line: people write few, and a generated line of thousands takes time by the square of them."""


def _too_crowded(text: str) -> int:
    """The first line with more statements than anybody writes on one, or 0."""
    if all(line.count(";") < MAX_ON_A_LINE for line in text.split("\n")):
        return 0
    depth = stops = 0
    number = 1
    for match in _WORD.finditer(text):
        kind, word = match.lastgroup, match[0]
        if kind == "sign":
            depth = max(depth + (word in "([{") - (word in ")]}"), 0)
            stops += word == ";" and depth == 0
            if stops == MAX_ON_A_LINE:
                return number
        elif kind == "end":
            stops = 0
        number += word.count("\n")
    return 0


def _long_statements(text: str) -> Iterator[tuple[int, str]]:
    """The statements with room for so many words, each with its first line: those that go on in brackets too."""
    depth, begun, size = 0, 0, 0
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if depth <= 0:
            if size > MAX_CHAIN:
                yield begun + 1, "\n".join(lines[begun:number])
            depth, begun, size = 0, number, 0
        size += len(line)
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
        depth = max(depth, int(line.endswith(("\\", "\\\r"))))
    if size > MAX_CHAIN:
        yield begun + 1, "\n".join(lines[begun:])


def _too_deep(text: str) -> int:
    """The first line on which brackets nest deeper than the parser can take, or 0."""
    if max(text.count("("), text.count("["), text.count("{")) < MAX_NESTING:
        return 0
    depth = 0
    for line in text.splitlines():
        for character in line:
            if character in "([{":
                depth += 1
                if depth > MAX_NESTING:
                    return _deep_line(text)
            elif character in ")]}" and depth:
                depth -= 1
    return 0


def _deep_line(text: str) -> int:
    """The same, brackets in strings and comments not counted."""
    depth, line = 0, 1
    for match in _WORD.finditer(text):
        word = match[0]
        if match.lastgroup == "sign":
            depth = max(depth + (word in "([{") - (word in ")]}"), 0)
            if depth > MAX_NESTING:
                return line
        line += word.count("\n")
    return 0
