"""Comments that silence findings.

    x = ...   # fsdp2lint: ignore[FSDP201] -- why        this logical line
    # fsdp2lint: ignore[optimizer-before-shard]           on a line of its own: the next statement
    # fsdp2lint: disable[FSDP2] … # fsdp2lint: enable[FSDP2]        a range
    # fsdp2lint: file-ignore[FSDP301]                     the file
    x = ...   # noqa: FSDP201                             this logical line

On a statement of several lines a comment on its first or last line counts for the whole statement, one
in between for its own line.
"""

from __future__ import annotations

import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from fsdp2lint.check.diagnostics import Diagnostic, Place
from fsdp2lint.config.settings import precision
from fsdp2lint.source.source import NEWLINE, Range

if TYPE_CHECKING:
    from fsdp2lint.catalogue.declare import Rule
    from fsdp2lint.source.source import Comment, Source

KINDS = ("ignore", "disable", "enable", "file-ignore")

_NATIVE = re.compile(
    r"#\s*fsdp2lint:\s*(?P<kind>[a-z-]+)\s*(?P<codes>\[[^\]]*\]?)?(?:\s+--\s+(?P<reason>[^#]*))?"
)
_NOQA = re.compile(r"#\s*noqa:\s*(?P<codes>[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)", re.IGNORECASE)
_CODE = re.compile(r"[^\s,\[\]]+")


@dataclass(slots=True)
class Word:
    """One code, prefix or name in a comment."""

    text: str
    start: int
    """Where it is in the comment's text, counted from 0."""
    used: bool = False

    @property
    def end(self) -> int:
        """Where it ends in the comment's text."""
        return self.start + len(self.text)

    def means(self, rule: Rule) -> bool:
        """Whether it stands for ``rule``; a whole group or ``ALL`` cannot be silenced by a comment."""
        return precision(self.text, rule) > 2


@dataclass(slots=True)
class Directive:
    """One suppression comment: its ``kind`` is one of :data:`KINDS` or ``noqa``."""

    comment: Comment
    kind: str
    start: int
    end: int
    """Where the directive is in the comment's text."""
    words: tuple[Word, ...]
    reason: str = ""
    lines: range = field(default=range(0))
    """The lines for which it counts."""


class Suppressions:
    """The suppression comments of one file; they remember what they silenced."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.directives = list(_parse(source))
        if self.directives:
            _place(self.directives, source)

    def silences(self, diagnostic: Diagnostic) -> Directive | None:
        """The comment that silences a finding, if one does."""
        line = diagnostic.place.range.line
        silent: tuple[Directive, Word] | None = None
        for directive in self.directives:
            if line not in directive.lines:
                continue
            for word in directive.words:
                if not word.means(diagnostic.rule):
                    continue
                if directive.kind == "enable":
                    silent = None if silent and silent[0].kind == "disable" else silent
                elif silent is None or silent[0].kind == "disable":
                    silent = (directive, word)
        if silent is None:
            return None
        silent[1].used = True
        return silent[0]

    def unknown(self, known: Sequence[Rule]) -> Iterator[tuple[Directive, Word | None]]:
        """The words that name no rule, and (as None) directives that name none or do not exist."""
        for directive in self._native():
            if directive.kind not in KINDS or not directive.words:
                yield directive, None
                continue
            for word in directive.words:
                if not any(word.means(rule) for rule in known):
                    yield directive, word

    def unused(self, ran: Sequence[Rule]) -> Iterator[tuple[Directive, Word]]:
        """The words that silenced nothing although a rule that they mean ran."""
        for directive in self._native():
            if directive.kind == "enable" or directive.kind not in KINDS:
                continue
            for word in directive.words:
                if not word.used and any(word.means(rule) for rule in ran):
                    yield directive, word

    def place(self, directive: Directive, word: Word | None) -> Place:
        """Where a word, or the whole directive, is."""
        line, column = directive.comment.line, directive.comment.column
        start = word.start if word else directive.start
        end = word.end if word else directive.end
        return Place(self.source, Range(line, column + start, line, column + end))

    def removal(self, directive: Directive, word: Word) -> tuple[int, int]:
        """The offsets of the text that goes when a word is unused: the word, the comment, or its line.

        All of the comment when nothing that it names is used.
        """
        text, comment = self.source.text, directive.comment
        line_start = self._line_starts[comment.line - 1]
        start = line_start + comment.column - 1
        if any(w.used for w in directive.words):
            words = directive.words
            at = words.index(word)
            if at:
                return start + words[at - 1].end, start + word.end
            return start + word.start, start + words[1].start
        first, last = start + directive.start, start + directive.end
        rest = comment.text[directive.end :].strip()
        if rest and not rest.startswith("#"):
            return first + 1, last  # the rest stays a comment
        if first == start and last == start + len(comment.text) and comment.alone:
            newline = NEWLINE.match(text, last)
            return line_start, newline.end() if newline else last
        before = text[line_start:first]
        return first - (len(before) - len(before.rstrip())), last

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(m.end() for m in NEWLINE.finditer(self.source.text))]

    def _native(self) -> Iterator[Directive]:
        return (d for d in self.directives if d.kind != "noqa")


def _parse(source: Source) -> Iterator[Directive]:
    if "fsdp2lint:" not in source.text and "noqa" not in source.text.lower():
        return
    for comment in source.comments:
        for match in _NATIVE.finditer(comment.text):
            kind, codes = match["kind"], match["codes"]
            if kind not in KINDS and codes is None:
                continue  # a sentence about the tool
            words = tuple(_words(codes or "", match.start("codes")))
            reason = (match["reason"] or "").strip()
            end = match.start() + len(match[0].rstrip())
            yield Directive(comment, kind, match.start(), end, words, reason)
        for match in _NOQA.finditer(comment.text):
            words = tuple(
                w
                for w in _words(match["codes"], match.start("codes"))
                if w.text.upper().startswith("FSDP")
            )
            if words:
                yield Directive(comment, "noqa", match.start(), match.end(), words)


def _words(codes: str, offset: int) -> Iterator[Word]:
    for match in _CODE.finditer(codes):
        yield Word(match[0], offset + match.start())


def _place(directives: list[Directive], source: Source) -> None:
    """Work out for which lines each directive counts."""
    each = range(1, len(source.lines) + 1)
    alone = {one.line for one in source.comments if one.alone}
    statements = (
        [(n, n) for n in each if n not in alone and source.lines[n - 1].strip()]
        if source.is_settings
        else logical_lines(source.text)
    )
    starts = [first for first, _ in statements]
    end = len(source.lines) + 1
    for directive in directives:
        line = directive.comment.line
        if directive.kind == "file-ignore":
            directive.lines = range(1, end + 1)
        elif directive.kind in ("disable", "enable"):
            directive.lines = range(line, end + 1)
        else:
            at = bisect_right(starts, line) - 1
            directive.lines = _one_statement(directive.comment, statements, at)


def _one_statement(comment: Comment, statements: list[tuple[int, int]], at: int) -> range:
    """The lines of ``ignore`` and ``noqa``; ``at`` is the last statement that begins at or above them."""
    line = comment.line
    first, last = statements[at] if at >= 0 else (0, 0)
    inside = first <= line <= last
    if comment.alone and inside and line > first:
        return range(line, line + 2)  # between brackets: the next line
    if comment.alone:
        first, last = statements[at + 1] if at + 1 < len(statements) else (line, line)
        return range(first, last + 1)
    if inside and line in (first, last):
        return range(first, last + 1)
    return range(line, line + 1)


def logical_lines(text: str) -> list[tuple[int, int]]:
    """The first and last line of each logical line; those before an error if there is one."""
    found: list[tuple[int, int]] = []
    first = 0
    reader = io.StringIO(text, newline=None)  # a lone carriage return ends a line too
    try:
        for token in tokenize.generate_tokens(reader.readline):
            if token.type == tokenize.NEWLINE:
                found.append((first or token.start[0], token.start[0]))
                first = 0
            elif not first and token.type not in _LAYOUT:
                first = token.start[0]
    except (tokenize.TokenError, SyntaxError):
        pass
    return found


_LAYOUT = {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
