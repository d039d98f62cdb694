"""Findings that a project knows and does not count: a file that is kept beside the code.

An entry names a file, a rule and the text of a line, and how many such findings there are; it holds
wherever the line is, and no longer when the line changes. An entry that matches nothing any more is
stale: it would hide the next finding of its kind.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp2lint.catalogue.toolrules import ALWAYS_ON
from fsdp2lint.check.diagnostics import shown
from fsdp2lint.system.files import read
from fsdp2lint.system.journal import NotWritten, replace_all

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic

VERSION = 1

Key = tuple[str, str, str]
"""A file (relative to the baseline, with slashes), a code, and the text of a line."""


class BadBaseline(Exception):
    """A baseline that cannot be read or written, or is none; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Findings against a baseline."""

    new: list[Diagnostic]
    known: list[Diagnostic]
    stale: list[tuple[Key, int]]
    """Entries that match fewer findings than they say, and by how many."""


class Baseline:
    """The entries of one file."""

    def __init__(self, file: str, entries: Counter[Key] | None = None) -> None:
        self.file = file
        self.entries: Counter[Key] = entries if entries is not None else Counter()

    @classmethod
    def load(cls, file: str) -> Baseline:
        """The baseline in a file.

        Raises:
            BadBaseline: it cannot be read or holds something else.
        """
        import msgspec

        from fsdp2lint.check.stored import StoredBaseline

        try:
            stored = msgspec.json.decode(read(file), type=StoredBaseline)
        except OSError as error:
            raise BadBaseline(f"{file}: {error.strerror or error}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadBaseline(f"{file}: no baseline: {error}") from error
        if stored.version != VERSION:
            raise BadBaseline(
                f"{file}: is of version {stored.version}, this program reads {VERSION}"
            )
        return cls(file, Counter({(e.file, e.code, e.line): e.count for e in stored.findings}))

    def write(self) -> None:
        """Put the entries into the file, in order.

        Raises:
            BadBaseline: it cannot be written.
        """
        import msgspec

        from fsdp2lint.check.stored import StoredBaseline, StoredKnown

        findings = [
            StoredKnown(*key, count) for key, count in sorted(self.entries.items()) if count
        ]
        raw = msgspec.json.encode(StoredBaseline(VERSION, findings))
        text = msgspec.json.format(raw, indent=1) + b"\n"
        try:
            replace_all({self.file: text})
        except NotWritten as error:
            raise BadBaseline(str(error)) from error

    def compare(
        self, found: Iterable[Diagnostic], passed: Collection[str], ran: Collection[str]
    ) -> Compared:
        """Which findings are known, and which entries are stale.

        Only entries of the files that were ``passed`` (absolute; less those that are not all seen) and of
        rules that ``ran`` can be stale, and those of files that are gone.
        """
        left = Counter(self.entries)
        new, known = [], []
        for diagnostic in found:
            key = self.key(diagnostic)
            if left[key] > 0 and diagnostic.rule not in ALWAYS_ON:
                left[key] -= 1
                known.append(diagnostic)
            else:
                new.append(diagnostic)
        stale = [
            (key, count)
            for key, count in sorted(left.items())
            if count > 0 and self._judged(key, passed, ran)
        ]
        return Compared(new, known, stale)

    def key(self, diagnostic: Diagnostic) -> Key:
        """By what a finding is known."""
        path = os.path.relpath(diagnostic.place.source.path, os.path.dirname(self.file) or ".")
        return (
            shown(path).replace(os.sep, "/"),
            diagnostic.rule.code,
            shown(diagnostic.place.line.strip()),
        )

    def path_of(self, key: Key) -> str:
        """The absolute path of the file that an entry is about."""
        return os.path.abspath(os.path.join(os.path.dirname(self.file), key[0]))

    def without(self, stale: Sequence[tuple[Key, int]]) -> Baseline:
        """The baseline less its stale entries."""
        return Baseline(self.file, self.entries - Counter(dict(stale)))

    def with_new(self, new: Iterable[Diagnostic]) -> Baseline:
        """The baseline and more findings; what was not analysed can never be known."""
        more = Counter(self.key(d) for d in new if d.rule not in ALWAYS_ON)
        return Baseline(self.file, self.entries + more)

    def _judged(self, key: Key, passed: Collection[str], ran: Collection[str]) -> bool:
        path = self.path_of(key)
        if not os.path.exists(path):
            return True
        return path in passed and key[1] in ran
