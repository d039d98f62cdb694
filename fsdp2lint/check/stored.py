"""Reports as plain data: what a process hands back, and what the cache keeps.

A finding on its own holds sources and edits; here it is places, words, and the text that a fix would put.
What comes back from here can be shown in every format, and cannot be fixed: for that the file is analysed
again.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional, TypeVar

import msgspec

from fsdp2lint.catalogue.declare import Group, Rule
from fsdp2lint.catalogue.findings import Fix, Safety
from fsdp2lint.check.coverage import Lost, Program, Seen
from fsdp2lint.check.diagnostics import Diagnostic, Place, Reason, Report, shown
from fsdp2lint.edits.changes import Span
from fsdp2lint.source.reading import decode
from fsdp2lint.source.source import Range, Source, Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp2lint.catalogue.findings import Finding
    from fsdp2lint.check.same_code import Moves
    from fsdp2lint.check.units import Unit
    from fsdp2lint.model.trace import Trace
    from fsdp2lint.source.prefilter import Content

N = TypeVar("N", Seen, Lost)

Read = Callable[[str], bytes]

Signature = tuple[int, int, int]
"""Size, time of the last change, number on disk: while they are the same, so are the bytes."""


class Spot(msgspec.Struct, array_like=True):
    """A span of the file at an index."""

    file: int
    line: int
    column: int
    end_line: int
    end_column: int


class StoredReason(msgspec.Struct, array_like=True):
    """Something that proves a finding."""

    spot: Spot
    label: str
    calls: list[Spot]
    order: Optional[int]  # noqa: UP045  msgspec reads the annotation at run time


class StoredFinding(msgspec.Struct, array_like=True):
    """A finding."""

    code: str
    message: str
    spot: Spot
    calls: list[Spot]
    order: Optional[int]  # noqa: UP045
    because: list[StoredReason]
    fix: Optional[tuple[str, Safety, str]]  # noqa: UP045
    note: str
    patch: list[tuple[int, list[tuple[int, int, str]]]]


class StoredReport(msgspec.Struct, array_like=True):
    """What was found in one unit."""

    files: list[tuple[str, bool]]
    """Each file that a finding names, and whether its text is shown."""
    found: list[StoredFinding]
    suppressed: list[tuple[StoredFinding, str]]
    analysed: int
    went_wrong: bool
    profile: dict[str, float]
    programs: list[Program]
    elsewhere: list[StoredFinding]


class StoredRule(msgspec.Struct, array_like=True):
    """A rule without what it does."""

    code: str
    name: str
    group: Group
    page: str
    since: str
    until: str
    preview: bool
    url: str


class Entry(msgspec.Struct, array_like=True):
    """A kept result, and what it depends on."""

    seen: dict[str, str]
    """What each path that the analysis asked about was (:class:`fsdp2lint.system.files.Files`)."""
    passed: dict[str, str]
    """Those of them that the user passed, as they were spelled."""
    result: bytes


class Last(msgspec.Struct, array_like=True):
    """Which result was kept last, of those that differ in what the files hold."""

    key: str
    files: list[tuple[str, str]]
    """The analysed files, with their digests."""
    texts: dict[str, bytes]
    """What the files of Python held that it depends on, squeezed."""


class Known(msgspec.Struct, array_like=True):
    """A file as it was read once."""

    signature: Signature
    digest: str
    relevant: bool


class StoredKnown(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of a baseline."""

    file: str
    code: str
    line: str
    count: int = 1


class StoredBaseline(msgspec.Struct, forbid_unknown_fields=True):
    """A baseline, as its file holds it."""

    version: int
    findings: list[StoredKnown]


_REPORTS = msgspec.msgpack.Decoder(StoredReport)
_RULES = msgspec.msgpack.Decoder(list[StoredRule])
_PLANS = msgspec.msgpack.Decoder(list[tuple[list[str], list[str], list[str]]])
_ENTRIES = msgspec.msgpack.Decoder(Entry)
_LASTS = msgspec.msgpack.Decoder(Last)
_TABLES = msgspec.msgpack.Decoder(dict[str, Known])


def encoded(what: object) -> bytes:
    """Plain data as bytes."""
    return msgspec.msgpack.encode(what)


def decoded_entry(raw: bytes | None) -> Entry | None:
    """An entry of the cache; None when the bytes are something else."""
    try:
        return None if raw is None else _ENTRIES.decode(raw)
    except msgspec.MsgspecError:
        return None


def decoded_last(raw: bytes | None) -> Last | None:
    """Which result was kept last; None when the bytes are something else."""
    try:
        return None if raw is None else _LASTS.decode(raw)
    except msgspec.MsgspecError:
        return None


def squeezed(raw: bytes) -> bytes:
    """Bytes in less room."""
    return zlib.compress(raw, 1)


def unsqueezed(raw: bytes) -> bytes:
    """The bytes again; nothing when they are something else."""
    try:
        return zlib.decompress(raw)
    except zlib.error:
        return b""


def decoded_table(raw: bytes | None) -> dict[str, Known]:
    """What was read of files; nothing when the bytes are something else."""
    try:
        return {} if raw is None else _TABLES.decode(raw)
    except msgspec.MsgspecError:
        return {}


def pack(report: Report) -> bytes:
    """A report as bytes."""
    packer = _Packer()
    found = [packer.finding(d) for d in report.found]
    suppressed = [(packer.finding(d), reason) for d, reason in report.suppressed]
    elsewhere = [packer.finding(d) for d in report.elsewhere]
    files = [(source.path, bool(source.text)) for source in packer.sources]
    return msgspec.msgpack.encode(
        StoredReport(
            files,
            found,
            suppressed,
            report.analysed,
            report.went_wrong,
            dict(report.profile),
            list(report.programs),
            elsewhere,
        )
    )


def unpack(
    raw: bytes, rules: Mapping[str, Rule], read: Read, known: Mapping[str, Source] | None = None
) -> Report:
    """The report again; ``read`` gives the bytes of a file whose text is shown and is not ``known``.

    Raises:
        msgspec.MsgspecError: the bytes are something else.
        KeyError: a rule is gone.
    """
    stored = _REPORTS.decode(raw)
    known = known or {}
    sources = [
        known.get(path) or (_source(path, read) if shown else Source(path, ""))
        for path, shown in stored.files
    ]
    unpacker = _Unpacker(sources, rules)
    return Report(
        found=[unpacker.finding(one) for one in stored.found],
        suppressed=[(unpacker.finding(one), reason) for one, reason in stored.suppressed],
        analysed=stored.analysed,
        went_wrong=stored.went_wrong,
        profile=stored.profile,
        programs=stored.programs,
        elsewhere=[unpacker.finding(one) for one in stored.elsewhere],
    )


def moved(raw: bytes, by: Mapping[str, Moves]) -> bytes | None:
    """A report about the next texts of files, by absolute path; None where the last one does not give it."""
    try:
        return encoded(_Moving(_REPORTS.decode(raw), by).report())
    except (msgspec.MsgspecError, KeyError):
        return None


def unpacked(
    raw: bytes, rules: Mapping[str, Rule], read: Read, known: Mapping[str, Source] | None = None
) -> Report | None:
    """The same, or None when the bytes are something else."""
    try:
        return unpack(raw, rules, read, known)
    except (msgspec.MsgspecError, KeyError, IndexError):
        return None


def pack_units(units: Sequence[Unit]) -> bytes:
    """Which files belong together, as bytes."""
    return encoded(
        [([p for p, _ in u.asked], [p for p, _ in u.programs], u.skipped) for u in units]
    )


def unpacked_units(
    raw: bytes, relevant: Sequence[tuple[str, Content]], read: Read
) -> list[Unit] | None:
    """The units again; None when the bytes are something else or a file is gone."""
    from fsdp2lint.check.units import Unit

    contents = dict(relevant)
    try:
        kept = _PLANS.decode(raw)
        for path in (p for one in kept for paths in one[:2] for p in paths):
            if path not in contents:
                contents[path] = read(os.path.abspath(path))
    except (msgspec.MsgspecError, OSError):
        return None

    def read_again(paths: Sequence[str]) -> tuple[tuple[str, Content], ...]:
        return tuple((path, contents[path]) for path in paths)

    return [
        Unit(read_again(asked), read_again(programs), tuple(skipped))
        for asked, programs, skipped in kept
    ]


def pack_rules(rules: Sequence[Rule]) -> bytes:
    """What rules say of themselves, as bytes."""
    return msgspec.msgpack.encode(
        [
            StoredRule(r.code, r.name, r.group, r.page, r.since, r.until, r.preview, r.url)
            for r in rules
        ]
    )


def unpacked_rules(raw: bytes | None) -> tuple[Rule, ...] | None:
    """The rules again, good for everything but to be asked; None when the bytes are something else."""
    try:
        kept = None if raw is None else _RULES.decode(raw)
    except msgspec.MsgspecError:
        return None
    if kept is None:
        return None
    return tuple(
        Rule(r.code, r.name, r.group, _not_here, r.page, r.since, r.until, r.preview, r.url)
        for r in kept
    )


def _not_here(trace: Trace) -> Iterator[Finding]:
    raise AssertionError("a rule out of the cache knows its page and nothing else")


def _source(path: str, read: Read) -> Source:
    try:
        return decode(read(path), path)
    except (OSError, Unreadable):
        return Source(path, "")


class _Packer:
    """Turns findings into records; the sources that they name get numbers."""

    def __init__(self) -> None:
        self.sources: dict[Source, int] = {}

    def finding(self, one: Diagnostic) -> StoredFinding:
        fix = None if one.fix is None else (one.fix.title, one.fix.safety, one.fix.note)
        patch = [
            (self._file(source), [(span.start, span.end, span.text) for span in spans])
            for source, spans in one.patch.items()
        ]
        return StoredFinding(
            one.rule.code,
            one.message,
            self._spot(one.place),
            [self._spot(c) for c in one.calls],
            one.order,
            [
                StoredReason(
                    self._spot(s.place), s.label, [self._spot(c) for c in s.calls], s.order
                )
                for s in one.because
            ],
            fix,
            one.note,
            patch,
        )

    def _spot(self, place: Place) -> Spot:
        at = place.range
        return Spot(self._file(place.source), at.line, at.column, at.end_line, at.end_column)

    def _file(self, source: Source) -> int:
        return self.sources.setdefault(source, len(self.sources))


class _Unpacker:
    """Turns records into findings."""

    def __init__(self, sources: Sequence[Source], rules: Mapping[str, Rule]) -> None:
        self.sources = sources
        self.rules = rules

    def finding(self, one: StoredFinding) -> Diagnostic:
        return Diagnostic(
            self.rules[one.code],
            one.message,
            self._place(one.spot),
            tuple(self._place(c) for c in one.calls),
            one.order,
            tuple(
                Reason(
                    self._place(s.spot), s.label, tuple(self._place(c) for c in s.calls), s.order
                )
                for s in one.because
            ),
            None if one.fix is None else Fix(one.fix[0], (), one.fix[1], one.fix[2]),
            one.note,
            {self.sources[file]: tuple(Span(*span) for span in spans) for file, spans in one.patch},
        )

    def _place(self, spot: Spot) -> Place:
        at = Range(spot.line, spot.column, spot.end_line, spot.end_column)
        return Place(self.sources[spot.file], at)


_LINE = re.compile(r"\bline (\d+)(?: of ([\w.-]+))?")
"""A place in the words of a finding: in the file of the finding, or in the one that is named."""


class _Moving:
    """Turns records into those of the next texts; what is not in it raises a KeyError."""

    def __init__(self, stored: StoredReport, by: Mapping[str, Moves]) -> None:
        self.stored = stored
        self.by_path = {shown(path): moves for path, moves in by.items()}
        self.by_file = [self._of(path) for path, _ in stored.files]
        self.shifts = any(moves.shifts for moves in by.values())

    def report(self) -> StoredReport:
        old = self.stored
        return msgspec.structs.replace(
            old,
            found=[self._finding(one) for one in old.found],
            suppressed=[(self._finding(one), reason) for one, reason in old.suppressed],
            elsewhere=[self._finding(one) for one in old.elsewhere],
            programs=[self._program(one) for one in old.programs],
        )

    def _of(self, path: str) -> Moves | None:
        return self.by_path.get(shown(os.path.abspath(path)))

    def _finding(self, one: StoredFinding) -> StoredFinding:
        moves = self.by_file[one.spot.file]
        if moves is not None and not moves.beside.isdisjoint(_lines(one.spot)):
            raise KeyError  # a fix may have to keep the comment
        if any(self.by_file[file] is not None for file, _ in one.patch):
            raise KeyError
        because = [
            msgspec.structs.replace(
                step,
                spot=self._spot(step.spot),
                label=self._words(step.label, one),
                calls=list(map(self._spot, step.calls)),
            )
            for step in one.because
        ]
        fix = one.fix
        if fix is not None:
            fix = self._words(fix[0], one), fix[1], self._words(fix[2], one)
        return msgspec.structs.replace(
            one,
            message=self._words(one.message, one),
            spot=self._spot(one.spot),
            calls=list(map(self._spot, one.calls)),
            because=because,
            fix=fix,
            note=self._words(one.note, one),
        )

    def _words(self, text: str, finding: StoredFinding) -> str:
        """Words about places, which are among those of a finding."""
        if not self.shifts or "line " not in text:
            return text
        proving = (step.spot for step in finding.because)
        spots = [finding.spot, *proving]

        def line(said: re.Match[str]) -> str:
            files = {
                spot.file
                for spot in spots
                if spot.line == int(said[1]) and self._is_named(spot, said[2], finding)
            }
            if len(files) != 1:
                raise KeyError(said[0])
            moves = self.by_file[files.pop()]
            number = int(said[1]) if moves is None else moves.lines[int(said[1])]
            return said[0].replace(said[1], str(number), 1)

        return _LINE.sub(line, text)

    def _is_named(self, spot: Spot, name: str | None, finding: StoredFinding) -> bool:
        if name is None:
            return spot.file == finding.spot.file
        return os.path.basename(self.stored.files[spot.file][0]) == name

    def _spot(self, spot: Spot) -> Spot:
        moves = self.by_file[spot.file]
        if moves is None:
            return spot
        start = moves.spots[spot.line, spot.column]
        return Spot(spot.file, *start, *moves.spots[spot.end_line, spot.end_column])

    def _program(self, one: Program) -> Program:
        def there(places: tuple[N, ...]) -> tuple[N, ...]:
            return tuple(map(self._on_its_line, places))

        return one._replace(
            shards=there(one.shards),
            optimizers=there(one.optimizers),
            steps=there(one.steps),
            states=there(one.states),
            lost=there(one.lost),
        )

    def _on_its_line(self, place: N) -> N:
        moves = self._of(place.file)
        if moves is None:
            return place
        if self.shifts and isinstance(place, Lost) and _LINE.search(place.why):
            raise KeyError
        if place.line == 1:  # of the file as a whole
            return place
        return place._replace(line=moves.lines[place.line])


def _lines(spot: Spot) -> range:
    return range(spot.line, spot.end_line + 1)
