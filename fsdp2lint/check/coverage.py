"""What a run of ``check`` followed, program by program, and where it lost sight.

A finding says what is wrong; this says how far "nothing is wrong" can be trusted. It is plain data: processes
hand it back and the cache keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Seen(NamedTuple):
    """Something that a program does: shard, build an optimizer, step, save."""

    what: str
    file: str
    line: int
    resolved: bool
    """Whether the model behind it is known."""
    linked: bool = False
    """Whether that model is one that the same run shards."""
    reached: bool = True
    """Whether the run of a program comes there; else its function was checked alone."""

    @property
    def fsdp2(self) -> bool:
        """Whether it shards by ``fully_shard``, not by FSDP1's class."""
        return self.what.startswith("sharded ")


TRAINING = "the training"
"""What is lost of a program that has something unknown go backward, and shows no optimizer."""


class Lost(NamedTuple):
    """What could not be followed, why, and where."""

    what: str
    why: str
    file: str
    line: int
    remedy: str = ""
    """The configuration that tells the analysis what it could not see."""

    @property
    def place(self) -> str:
        """``registry.py:40``."""
        return f"{self.file}:{self.line}"


class Program(NamedTuple):
    """A file in which a training run begins, or, where not ``begins``, one whose functions no run reached."""

    file: str
    begins: bool
    shards: tuple[Seen, ...] = ()
    optimizers: tuple[Seen, ...] = ()
    steps: tuple[Seen, ...] = ()
    states: tuple[Seen, ...] = ()
    """State dicts and checkpoints that are taken, saved and loaded."""
    lost: tuple[Lost, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether everything that it does to the model was followed."""
        return not self.lost and not (self.begins and self.idle)

    @property
    def idle(self) -> tuple[Seen, ...]:
        """Its sharding calls in functions that its run does not reach."""
        return tuple(seen for seen in self.shards if not seen.reached)

    @property
    def trains(self) -> bool:
        """Whether it does more than to read and write checkpoints, as far as it was followed."""
        known = self.shards or self.optimizers or self.steps or self.lost_training
        return bool(known or not (self.states or self.whole))

    @property
    def lost_training(self) -> bool:
        """Whether it has something go backward that is not known."""
        return any(lost.what == TRAINING for lost in self.lost)

    @property
    def is_test(self) -> bool:
        """Whether it looks like a test."""
        parts = self.file.replace("\\", "/").split("/")
        return any(part.startswith("test") for part in parts) or parts[-1].endswith("_test.py")

    def of(self, kind: str) -> tuple[Seen, ...]:
        """What it does of a kind: ``shards``, ``optimizers``, ``steps`` or ``states``."""
        found: tuple[Seen, ...] = getattr(self, kind)
        return found


KINDS = ("shards", "optimizers", "steps", "states")


def merged(every: Iterable[Program]) -> tuple[Program, ...]:
    """The programs by their files, each once."""
    found: dict[str, Program] = {}
    for one in every:
        known = found.get(one.file)
        found[one.file] = one if known is None else _joined(known, one)
    return tuple(found[file] for file in sorted(found))


def _joined(one: Program, other: Program) -> Program:
    seen = {kind: _union(one.of(kind), other.of(kind)) for kind in KINDS}
    lost = tuple(dict.fromkeys((*one.lost, *other.lost)))
    return Program(one.file, one.begins or other.begins, **seen, lost=lost)


def _union(one: Sequence[Seen], other: Sequence[Seen]) -> tuple[Seen, ...]:
    """Both, each place once, known as well as the better of the two knew it."""
    found: dict[tuple[str, int], Seen] = {}
    for seen in (*one, *other):
        place = seen.file, seen.line
        known = found.get(place)
        if known is None:
            found[place] = seen
            continue
        better = max(known, seen, key=lambda one: (one.resolved, one.linked))
        found[place] = better._replace(reached=known.reached or seen.reached)
    return tuple(found[place] for place in sorted(found))


def programs_of(every: Iterable[Program]) -> list[Program]:
    """Those in which training runs begin."""
    return [one for one in every if one.begins and one.trains]


def gaps(every: Sequence[Program]) -> str:
    """``Followed 4 of 6 training programs; 2 only partly: train_dpo.py lost the model at registry.py:40.``

    Empty where everything that trains was followed.
    """
    begun = programs_of(every)
    unreached = _unreached(every)
    idle = len(unreached)
    called = "`fully_shard`" if all(s.fsdp2 for s in unreached) else "sharding"
    calls = f"{idle} {called} call{'' if idle == 1 else 's'}"
    if not begun:
        said = f"No training program leads to the {calls}; the functions around were checked alone."
        return said if idle else ""
    partly = [one for one in begun if one.lost]
    alone = f"{calls} {'is' if idle == 1 else 'are'} reached by no training program" if idle else ""
    if not partly:
        return f"{alone}." if idle else ""
    first = min(partly, key=lambda one: (one.is_test, -len(one.shards), -len(one.steps), one.file))
    lost = first.lost[0]
    said = f"{first.file} lost {lost.what} at {lost.place}"
    more = sum(len(one.lost) for one in partly) - 1
    tail = "".join((f"; {alone}" if idle else "", " (all with `-v`)" if more else ""))
    whole = len(begun) - len(partly)
    if len(begun) == 1:
        return f"Followed the training program only partly: {said}{tail}."
    return f"Followed {whole} of {len(begun)} training programs; {len(partly)} only partly: {said}{tail}."


def _unreached(every: Sequence[Program]) -> list[Seen]:
    """The sharding calls in functions that no program reaches."""
    sites = {(site.file, site.line): site for one in every for site in one.shards}
    reached = {(site.file, site.line) for one in every for site in one.shards if site.reached}
    return [site for place, site in sites.items() if place not in reached]


def details(every: Sequence[Program]) -> list[str]:
    """For each program what was seen of it and what was lost, as lines."""
    lines = []
    for one in every:
        name = one.file if one.begins else f"{one.file} (no program that runs it was found)"
        lines.append(f"{name}: {_counts(one)}")
        for site in one.idle if one.begins else ():
            lines.append(f"  its run does not reach the sharding at {site.file}:{site.line}")
        for lost in one.lost:
            lines.append(f"  lost {lost.what} at {lost.place}: {lost.why}")
            if lost.remedy:
                lines.append(f"    if you know: [tool.fsdp2lint.knowledge] {lost.remedy}")
    return lines


_NOUNS = {"shards": "shard", "optimizers": "optimizer", "steps": "step", "states": "state"}


def _counts(one: Program) -> str:
    """``12 of 14 shards, 1 optimizer, 2 steps``: how many sites have a known model."""
    said = []
    for kind in KINDS:
        seen = one.of(kind)
        known = sum(site.resolved for site in seen)
        if seen:
            number = str(len(seen)) if known == len(seen) else f"{known} of {len(seen)}"
            said.append(f"{number} {_NOUNS[kind]}{'' if len(seen) == 1 else 's'}")
    return ", ".join(said) or "nothing that trains"


def table(every: Sequence[Program]) -> list[str]:
    """A line for each program, sites with a known model out of all, and what was lost below it."""
    if not every:
        return ["No code that trains was found."]
    wide = max(len("program"), *(len(one.file) for one in every))
    heads = ("sharded", "optimizers", "steps", "states")
    lines = [f"{'program':<{wide}}  " + "  ".join(f"{head:>10}" for head in heads) + "  followed"]
    for one in every:
        cells = []
        for kind in KINDS:
            seen = one.of(kind)
            known = sum(site.resolved for site in seen)
            cells.append(f"{f'{known}/{len(seen)}' if seen else '-':>10}")
        how = ("wholly" if one.whole else "partly") if one.begins else "no program runs it"
        lines.append(f"{one.file:<{wide}}  " + "  ".join(cells) + f"  {how}")
    for one in every:
        if one.lost or (one.begins and one.idle):
            lines += ["", *details([one])]
    return lines
