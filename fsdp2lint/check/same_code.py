"""Two texts of a file that say the same to Python: only comments, empty lines and the breaks of lines are different.

What was found in the one holds for the other, at other places. Where a comment could matter, they count as different:
one that silences something, one inside of brackets (messages show such code), one beside a finding (a fix may have
to keep it).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import NamedTuple
from warnings import catch_warnings, simplefilter

from fsdp2lint.project.project import MAX_FOLLOWED
from fsdp2lint.source.source import Source

Spot = tuple[int, int]
"""A line and a column, both from 1."""

_TELLING = re.compile(r"(?i)fsdp|coding[:=]")
"""A comment may silence something, or say how the file is written."""
_NEARLY = 0.95
"""A file so near to the size from which on none is followed could be beyond it with one more comment."""


class Moves(NamedTuple):
    """Where everything of a text is in the next one."""

    spots: Mapping[Spot, Spot]
    """The beginnings and ends of tokens."""
    lines: Mapping[int, int]
    beside: frozenset[int]
    """The lines, in the old text, of the functions in which comments are different."""

    @property
    def shifts(self) -> bool:
        """Whether anything is on another line."""
        return any(old != new for old, new in self.lines.items())


class _Read(NamedTuple):
    """The tokens of a text without its comments, and these: each with the number of the token that follows."""

    tokens: list[tokenize.TokenInfo]
    comments: list[tuple[str, int]]
    inside: list[tuple[str, int]]
    """Those inside of brackets."""
    telling: list[tuple[str, int, int, int]]
    """Those that may silence something, with how many lines they are below a token and above the next."""


def moves(old: bytes, new: bytes) -> Moves | None:
    """How places move from one text to the next; None where these do not say the same."""
    if max(len(old), len(new)) > _NEARLY * MAX_FOLLOWED:
        return None
    with suppress(UnicodeDecodeError, SyntaxError, tokenize.TokenError, ValueError):
        before, after = old.decode(), new.decode()
        return _moves(before, after)
    return None


def _moves(before: str, after: str) -> Moves | None:
    if any(sign in text for text in (before, after) for sign in "\f\r\ufeff"):
        return None
    if Source("", before).said != Source("", after).said:
        return None
    one, other = _read(before), _read(after)
    if list(map(_said, one.tokens)) != list(map(_said, other.tokens)):
        return None
    if one.inside != other.inside:
        return None
    if one.telling != other.telling:
        return None
    different = set(one.comments) ^ set(other.comments)
    pairs = list(zip(one.tokens, other.tokens, strict=True))
    spots = {_spot(a.start): _spot(b.start) for a, b in pairs}
    spots |= {_spot(a.end): _spot(b.end) for a, b in pairs}
    lines = {a.start[0]: b.start[0] for a, b in pairs if a.string}
    return Moves(spots, lines, _beside(before, one, {number for _, number in different}))


def _read(text: str) -> _Read:
    read = _Read([], [], [], [])
    depth = 0
    telling = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            place = token.string, len(read.tokens)
            read.comments.append(place)
            if depth:
                read.inside.append(place)
            if _TELLING.search(token.string):
                telling.append((*place, token.start[0]))
        elif token.type != tokenize.NL:
            read.tokens.append(token)
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
    for said, number, line in telling:
        above = read.tokens[number - 1].end[0] if number else 0
        read.telling.append((said, number, line - above, read.tokens[number].start[0] - line))
    return read


def _said(token: tokenize.TokenInfo) -> tuple[int, str]:
    """A token as it says something: the end of the last line may be there or not."""
    return token.type, "" if token.type == tokenize.NEWLINE else token.string


def _spot(place: tuple[int, int]) -> Spot:
    return place[0], place[1] + 1


def _beside(text: str, read: _Read, numbers: Collection[int]) -> frozenset[int]:
    """The lines of the innermost functions, or statements of the module, around the tokens of these numbers."""
    if not numbers:
        return frozenset()
    with catch_warnings():
        simplefilter("ignore")
        tree = ast.parse(text)
    blocks = [*tree.body, *(n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS))]
    spans = [range(_first(node), (node.end_lineno or node.lineno) + 1) for node in blocks]
    spans.sort(key=len)
    found: set[int] = set()
    for number in numbers:
        near = {
            read.tokens[n].start[0] for n in (number - 1, number) if n in range(len(read.tokens))
        }
        for line in near:
            found.update(next((span for span in spans if line in span), ()))
    return frozenset(found)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _first(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])
