"""The numbers in two texts, line by line: what ranks printed, and the files that they wrote.

Lines belong together that say the same around their numbers. Clocks, speeds, memory, dates and addresses
are no part of a line: no two runs share them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

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
