"""What two runs print and write beside their checkpoints.

The numbers in two texts, line by line: what ranks printed, and the files that they wrote.

Lines belong together that say the same around their numbers. Clocks, speeds, memory, dates and addresses
are no part of a line: no two runs share them.
"""

from __future__ import annotations

import filecmp
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from fsdp2lint.prove.equality.settled import counted_by_shard
from fsdp2lint.prove.written import others
from fsdp2lint.rehearse.outcome import RankReport
from fsdp2lint.rehearse.results import Compared, Difference, Kind

_CHANCE = re.compile(r"[0-9a-f]{6,}|\d+|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec")
"""What may be another in the name of a file that each run names anew."""
_STREAMS = ("out", "err")
_LARGE = 64 * 1024 * 1024

Sides = tuple[Path, Path]
Noise = frozenset[tuple[str, str]]
"""Where a line is and its words, of lines that two runs of BEFORE do not have alike either."""


@dataclass(frozen=True)
class Text:
    """What one rank printed, or one file, in both runs."""

    where: str
    rank: int | None
    before: list[Line]
    after: list[Line]
    by_name: bool = False
    """Whether the lines are entries with names."""

    def apart(self, rtol: float, noise: Noise = frozenset()) -> list[Apart]:
        """The lines of BEFORE that AFTER does not have."""
        every = (compare_keyed if self.by_name else compare)(self.before, self.after, rtol)
        return [one for one in every if (self.where, one.before.words) not in noise]


def noise(texts: Iterable[Text], rtol: float) -> Noise:
    """What differs between two runs of one program."""
    return frozenset((text.where, one.before.words) for text in texts for one in text.apart(rtol))


def printed(
    folders: Sides, ranks: tuple[Sequence[RankReport], Sequence[RankReport]]
) -> Iterator[Text]:
    """What the ranks printed, to standard output and to standard error; ``folders`` hold it."""
    for reports in zip(*ranks, strict=False):
        rank = reports[0].rank
        for stream, kind in enumerate(_STREAMS):
            name = f"rank{rank}.{kind}"
            old, new = (
                _printed(folder / name, report, stream)
                for folder, report in zip(folders, reports, strict=True)
            )
            yield Text(f"rank {rank}", rank, old, new)


def compare_printed(texts: Iterable[Text], rtol: float, noise: Noise) -> Compared:
    """The numbers that ranks print, by position and step."""
    compared = Compared("printed numbers")
    for text in texts:
        apart = text.apart(rtol, noise)
        early = [one for one in apart if one.before.early and one.after is not None]
        compared.count += len(text.before)
        compared.identical += len(text.before) - len(apart)
        compared.notes += [f"before the first loss, {_both_texts(text, one)}" for one in early[:1]]
        _say(compared, "printed", text, [one for one in apart if one not in early])
    compared.differences = compared.differences[:1]
    return compared


def written(works: Sides, known: Sequence[str]) -> Iterator[Text]:
    """The text files in two working folders that both have, and that are not the same."""
    for name, partner in _paired(*(others(work, known) for work in works)):
        if partner is not None and not _same(works[0] / name, works[1] / partner):
            old, new = _text(works[0] / name), _text(works[1] / partner)
            if old is None or new is None:
                continue
            was, now = _entries(old), _entries(new)
            if was is not None and now is not None:
                yield Text(str(name), None, keyed(was), keyed(now), by_name=True)
            else:
                yield Text(str(name), None, lines(old), lines(new))


def compare_files(
    works: Sides,
    known: Sequence[str],
    rtol: float,
    noise: Noise,
    ranks: int = 1,
    resumed: bool = False,
) -> Compared:
    """The files in two working folders that are no checkpoints: whether AFTER has each, and its numbers."""
    compared = Compared("other files")
    old, new = (others(work, known) for work in works)
    paired = _paired(old, new)
    for name, partner in paired:
        if partner is None:
            message = f"AFTER does not write the file `{name}`"
            compared.differences.append(Difference("file", message, name=str(name), missing=True))
            continue
        compared.count += 1
        mine, theirs = works[0] / name, works[1] / partner
        if _same(mine, theirs):
            compared.identical += 1
        elif None in (_text(mine), _text(theirs)):
            compared.notes.append(f"`{name}` is not the same, and its format is not known")
    for text in written(works, known):
        apart = text.apart(rtol, noise)
        settled = [(one, why) for one in apart if (why := _expected(text, one, ranks, resumed))]
        compared.notes += [f"{_both_texts(text, one)}, as expected: {why}" for one, why in settled]
        _say(compared, "file", text, [one for one in apart if one not in dict(settled)])
    if more := sorted(set(new) - {partner for _, partner in paired}):
        shown = f" and {len(more) - 1} more" if len(more) > 1 else ""
        compared.notes.append(f"only AFTER writes `{more[0]}`{shown}")
    return compared


def _expected(text: Text, apart: Apart, ranks: int, resumed: bool) -> str:
    """Why the two lines differ where the training does not; empty when nothing explains it."""
    after = apart.after
    numbers = apart.before.numbers
    if after is None or not numbers or numbers[:-1] != after.numbers[:-1]:
        return ""
    old, new = float(numbers[-1]), float(after.numbers[-1])
    return counted_by_shard(text.where, apart.before.words, old, new, ranks, resumed)


def _printed(path: Path, rank: RankReport, stream: int) -> list[Line]:
    text = path.read_bytes()[:_LARGE] if path.exists() else b""
    return lines(text, [step.printed[stream] for step in rank.steps], rank.began[stream])


def _paired(old: Sequence[Path], new: Sequence[Path]) -> list[tuple[Path, Path | None]]:
    """Each file of BEFORE with that of AFTER: of the same name, or of one that chance or a renamed folder makes another."""
    left = {name: _CHANCE.sub("*", str(name)) for name in new if name not in old}
    found: list[tuple[Path, Path | None]] = []
    for name in old:
        pattern = _CHANCE.sub("*", str(name))
        partner = name if name in new else next((n for n, p in left.items() if p == pattern), None)
        partner = partner or next((n for n in left if _moved(name, n, new)), None)
        if partner is not None:
            left.pop(partner, None)
        found.append((name, partner))
    return found


def _moved(name: Path, other: Path, new: Sequence[Path]) -> bool:
    """Whether two files differ in the name of one folder, which AFTER does not have any more."""
    if len(name.parts) != len(other.parts) or name.name != other.name:
        return False
    apart = [
        n for n, pair in enumerate(zip(name.parts, other.parts, strict=True)) if len({*pair}) > 1
    ]
    return len(apart) == 1 and not any(
        one.is_relative_to(Path(*name.parts[: apart[0] + 1])) for one in new
    )


def _same(before: Path, after: Path) -> bool:
    return filecmp.cmp(before, after, shallow=False)


def _text(path: Path) -> bytes | None:
    """What a file holds, when that is text."""
    if path.stat().st_size > _LARGE:
        return None
    text = path.read_bytes()
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if b"\0" in text else text


def _entries(text: bytes) -> list[tuple[str, object]] | None:
    """The entries of JSON, or of one JSON value on each line; None where a text is neither."""
    try:
        return list(_leaves("", json.loads(text)))
    except ValueError:
        pass
    try:
        return list(_leaves("", [json.loads(line) for line in text.splitlines() if line.strip()]))
    except ValueError:
        return None


def _leaves(place: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(f"{place}.{key}" if place else str(key), one)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _leaves(f"{place}[{number}]", one)
    else:
        yield place, value


def _say(compared: Compared, kind: Kind, text: Text, apart: Sequence[Apart]) -> None:
    if apart:
        first = apart[0]
        difference = Difference(
            kind,
            _both_texts(text, first),
            first.before.step or None,
            text.rank,
            name=text.where,
            missing=first.after is None,
            more=len(apart) - 1,
        )
        compared.differences.append(difference)


def _both_texts(text: Text, apart: Apart) -> str:
    step = f" after step {apart.before.step}" if apart.before.step else ""
    where = f"`{text.where}`" if text.rank is None else f"{text.where} prints"
    old = _short(apart.before.text)
    if apart.after is None:
        return f"{where}{step} `{old}` in BEFORE only"
    return f"{where}{step} `{old}` in BEFORE and `{_short(apart.after.text)}` in AFTER"


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."


SINGLE = 1e-6
"""How near printed numbers are that a float32 cannot hold apart."""
DERIVED = 10.0
"""A printed number may be made of others: it may be off by so many times the tolerance."""
COARSE = 1e-3
"""Up to this share of a number its last printed digit may be rounded the other way."""

_VOLATILE = re.compile(
    r"""
      \d{4}-\d\d-\d\d (?: [T_ ]\d\d[:-]\d\d (?: [:-]\d\d (?: [.,]\d+ )? )? )?       # dates
    | \d+:\d\d (?: :\d\d )? (?: [.,]\d+ )? (?! \d )                              # clocks
    | 0x[0-9a-f]+ | \b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]+                         # addresses, names by chance
    | (?: /[\w.+-]+ ){2,}                                                        # paths
    | [-+]?\d[\d.,]* (?: e[-+]?\d+ )? \s?
      (?: [mun]?s | secs? | seconds? | min(?: ute)?s? | hours? | h | [\w.]+/s(?: ec)? | s/\w+
        | [kmgt]i?b | [tgp]flops? ) \b                                           # with a unit
    | (?<! [a-z] ) (?: \w*time\w* | \w*elapsed\w* | eta | \w*sec(?: ond)?s? | took | duration | latency | \w*speed\w*
        | \w*throughput\w* | \w*per_s(?: ec)?\w* | \w*/s | \w*mem(?: ory)?\w* | \w*alloc\w* | \w*reserved\w* | rss
        | \w*flops\w* | mfu | pid | port | \w*stamp\w* )
      (?: \s*\([^)\d]*\) )? ["']? \s* [:=]? \s* [-+]?\d[\d.]* (?: e[-+]?\d+ )?   # by their names
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w]|\.\d)")
_SHARDING = re.compile(r"\w*(?:fsdp|fully_?shard)\w*", re.IGNORECASE)
_NOTICE = re.compile(
    r"warn|deprecat|^\[[WEI]\d{4}|^\[rank\d+\]:|Traceback|^  File |it/s|s/it|\d%\|.*\| *\d+\S*/\d",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Line:
    """A line with its numbers, and the step after which it was printed."""

    text: str
    words: str
    numbers: tuple[str, ...]
    step: int
    early: bool
    """Whether it was printed before the first loss: about the model, not about what it does."""


@dataclass(frozen=True)
class Apart:
    """A line of BEFORE that AFTER has with other numbers, or not at all."""

    before: Line
    after: Line | None


def lines(text: bytes, ends: Sequence[int] = (), began: int = 0) -> list[Line]:
    """The lines of a text that have numbers; ``ends`` is how long it was at each step, ``began`` at the first loss."""
    found = []
    place = 0
    for raw in re.split(rb"(?<=[\r\n])", text):
        line = raw.decode("utf-8", "replace").strip()
        if line and not _NOTICE.search(line):
            words = _VOLATILE.sub("~", line)
            numbers = tuple(_NUMBER.findall(words))
            if numbers:
                spaced = " ".join(_NUMBER.sub("#", words).split())
                step = bisect_right(ends, place)
                found.append(Line(line, spaced, numbers, step, place < began))
        place += len(raw)
    return found


def compare(before: Sequence[Line], after: Sequence[Line], rtol: float) -> Iterator[Apart]:
    """Every line of BEFORE that AFTER does not have, in the order in which BEFORE printed them."""
    said = _by_words(after)
    found: list[tuple[int, Apart]] = []
    left: list[tuple[int, Line]] = []
    for words, mine in _by_words(before).items():
        theirs = said.pop(words, [])
        for (place, old), other in zip_longest(mine, theirs[: len(mine)]):
            if other is None:
                left.append((place, old))
            elif not _alike(old, other[1], rtol):
                found.append((place, Apart(old, other[1])))
        if len(theirs) > len(mine):
            said[words] = theirs[len(mine) :]
    others = [line for numbered in said.values() for _, line in numbered]
    gone = []
    for place, line in left:  # said in other words
        same = next((other for other in others if _alike(line, other, rtol)), None)
        if same is not None:
            others.remove(same)
        else:
            gone.append((place, Apart(line, None)))
    reworded = any(other.early for other in others)  # as a model that prints itself
    found += [
        (place, one)
        for place, one in gone
        if not (one.before.early and (reworded or _SHARDING.search(one.before.text)))
    ]
    for _, apart in sorted(found, key=lambda one: one[0]):
        yield apart


def keyed(leaves: Iterable[tuple[str, object]]) -> list[Line]:
    """The entries of a file that has them by name, each as a line; its words are the name."""
    every = ((name, f"{name}: {value}") for name, value in leaves)
    return [
        Line(text, name, tuple(_NUMBER.findall(_VOLATILE.sub("~", text))), 0, False)
        for name, text in every
    ]


def compare_keyed(before: Sequence[Line], after: Sequence[Line], rtol: float) -> Iterator[Apart]:
    """Every entry of BEFORE that AFTER does not have, or has otherwise."""
    theirs = {line.words: line for line in after}
    for line in before:
        other = theirs.get(line.words)
        if other is None or not (_alike(line, other, rtol) and _wording(line) == _wording(other)):
            yield Apart(line, other)


def _wording(line: Line) -> str:
    """What an entry is beside its numbers, chance and the API that shards."""
    return _SHARDING.sub("~", _NUMBER.sub("#", _VOLATILE.sub("~", line.text)))


def _by_words(every: Sequence[Line]) -> dict[str, list[tuple[int, Line]]]:
    found: dict[str, list[tuple[int, Line]]] = {}
    for place, line in enumerate(every):
        found.setdefault(line.words, []).append((place, line))
    return found


def _alike(one: Line, other: Line, rtol: float) -> bool:
    return len(one.numbers) == len(other.numbers) and all(
        _near(mine, theirs, rtol) for mine, theirs in zip(one.numbers, other.numbers, strict=True)
    )


def _near(one: str, other: str, rtol: float) -> bool:
    if one == other:
        return True
    mine, theirs = float(one), float(other)
    largest, distance = max(abs(mine), abs(theirs)), abs(mine - theirs)
    if distance <= max(DERIVED * rtol, SINGLE) * largest:
        return True
    digit = 10.0 ** -len(one.lower().partition("e")[0].partition(".")[2])
    digit *= 10.0 ** int(one.lower().partition("e")[2] or 0)
    return rtol > 0 and digit <= COARSE * largest and distance <= 1.01 * digit
