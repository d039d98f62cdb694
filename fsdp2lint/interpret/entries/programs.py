"""In which order runs are made: they share a budget, so those first that show the most of how a project trains."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fsdp2lint.interpret.imports import copied_from_torch
from fsdp2lint.project.links import is_second_rate
from fsdp2lint.source.deferred import defined

if TYPE_CHECKING:
    import libcst as cst

    from fsdp2lint.interpret.again import Reached
    from fsdp2lint.project.project import Project
    from fsdp2lint.source.source import Source

MAX_LED = 400
"""To so many files imports are followed from one program to see what it leads to."""

FEW = 2
"""So many programs are run as they come: there is enough for each."""

_TRAINS = re.compile(
    r"fully_shard\(|FullyShardedDataParallel|optim\w*\.step\(|\.backward\(|state_dict"
)
"""What a file says that holds a part of the training."""

_SHARDS = re.compile(r"fully_shard\(|FullyShardedDataParallel\(")
"""What a function says that shards."""

MAX_VARIANTS = 4
"""So many runs of programs are made again with another module."""

_HEAD = re.compile(r"^[ \t]*(?:async[ \t]+)?def[ \t]+(\w+)", re.MULTILINE)


def in_order(
    project: Project, programs: Iterable[Source], reached: Reached | None = None
) -> Iterator[Source]:
    """Training programs before others, tests last.

    Of the training programs that one comes next that leads to most of the training which no run has ``reached`` by
    then: the variants of a program, which differ in settings, tell little that it did not tell. What a program led to
    and did not reach counts half the next time, a third after another one: perhaps nothing reaches it.
    """
    ordered = sorted(programs, key=_training_first)
    if len(ordered) <= FEW:
        yield from ordered
        return
    training = _Training(project)
    left = {
        source: training.led_to(source) for source in ordered if _training_first(source)[0] == 0
    }
    times: Counter[str] = Counter()
    while left:
        every = dict.fromkeys(path for paths in left.values() for path in paths)
        new = {path: training.unreached(path, reached) / 2 ** times[path] for path in every}
        more = {source: sum(map(new.__getitem__, paths)) for source, paths in left.items()}
        following = min(left, key=lambda one: (-more[one], _training_first(one)))
        yield following
        times.update(left.pop(following))
    yield from (source for source in ordered if _training_first(source)[0] != 0)


def runs_of(
    project: Project, programs: Sequence[Source], reached: Reached
) -> Iterator[tuple[Source, str]]:
    """Programs in the order in which they run, and the module that each names where it could name one of several.

    When all but tests have run, some of those that train run again with another module.
    """
    again = _variants(project, programs, reached)
    for source in in_order(project, programs, reached):
        if is_second_rate(source.path):
            yield from again
        yield source, ""
    yield from again


def _variants(
    project: Project, programs: Iterable[Source], reached: Reached
) -> Iterator[tuple[Source, str]]:
    """Training programs that name one of several modules, and those of these with which they are to run again.

    That are the modules which lead to sharding that no run has reached, and what one led to is not looked for again.
    """
    sharding = _Training(project, _SHARDS)
    given_up: set[str] = set()

    def new(path: str) -> dict[str, int]:
        source = project.passed_through(path)
        led_to = () if source is None else (path, *sharding.led_to(source))
        return {one: sharding.unreached(one, reached) for one in led_to if one not in given_up}

    for _ in range(MAX_VARIANTS):
        more = {
            (program, path): new(path)
            for program in sorted(filter(trains, programs), key=_training_first)
            for path in reached.choices.get(program.path, ())
        }
        best = max(more, key=lambda one: sum(more[one].values()), default=None)
        if best is None or not any(more[best].values()):
            return
        yield best
        given_up.update(more[best])


def _training_first(source: Source) -> tuple[int, int]:
    rank = 2 * is_second_rate(source.path) + (not trains(source))
    return rank, source.path.replace("\\", "/").count("/")


def trains(source: Source) -> bool:
    """Whether a program is one that trains, by its name or by a word of its text."""
    path = source.path.replace("\\", "/")
    return "train" in path or "finetune" in path or "optimizer" in source.said


def workers_first(source: Source) -> tuple[bool, bool, int]:
    """Sorts the files whose functions and classes run as no program has reached them.

    First those that shard and train, nearest to the root: their classes are workers that unresolved code
    starts. Tests and copies of torch come last: with what is theirs they would use up what all share.
    """
    aside = is_second_rate(source.path) or copied_from_torch(source.path) != ""
    trains = "optim" in source.said and any(word in source.said for word in ("fully_shard", "FSDP"))
    return aside, not trains, source.path.replace("\\", "/").count("/") if trains else 0


class _Training:
    """The files of a project that hold a part of the training, and how imports lead to them."""

    def __init__(self, project: Project, words: re.Pattern[str] = _TRAINS) -> None:
        self._project = project
        self._words = words
        self._imports: dict[str, tuple[str, ...]] = {}
        self._trains: dict[str, frozenset[str]] = {}
        self._nodes: dict[str, list[cst.FunctionDef]] = {}

    def led_to(self, program: Source) -> tuple[str, ...]:
        """The files of the training to which the imports of a program lead, without its own."""
        start = self._project.path_of(program)
        seen = dict.fromkeys(self._imported_by(start, program))
        waiting = list(seen)
        while waiting and len(seen) < MAX_LED:
            path = waiting.pop()
            source = self._project.passed_through(path)
            for other in () if source is None else self._imported_by(path, source):
                if other not in seen:
                    seen[other] = None
                    waiting.append(other)
        return tuple(path for path in seen if path != start and self._functions(path))

    def unreached(self, path: str, reached: Reached | None) -> int:
        """How many functions of a file that hold a part of the training no run has reached."""
        functions = self._functions(path)
        source = self._project.passed_through(path)
        if reached is None or source is None or not source.is_parsed:  # nothing of it has run
            return len(functions)
        if path not in self._nodes:
            self._nodes[path] = [n for n in defined(source.tree) if n.name.value in functions]
        return len(functions - {n.name.value for n in self._nodes[path] if reached.knows(n)})

    def _imported_by(self, path: str, source: Source) -> tuple[str, ...]:
        if path not in self._imports:
            self._imports[path] = tuple(self._project.imported_by(source))
        return self._imports[path]

    def _functions(self, path: str) -> frozenset[str]:
        """The names of the functions of a file in which a part of the training is; "" for the module."""
        if path not in self._trains:
            source = self._project.passed_through(path)
            self._trains[path] = (
                frozenset() if source is None else _functions_with(self._words, source.said)
            )
        return self._trains[path]


def _functions_with(words: re.Pattern[str], text: str) -> frozenset[str]:
    """The names of the functions of a text in which one of these words is."""
    found, heads, at = set(), [""], 0
    for match in words.finditer(text):
        heads += _HEAD.findall(text, at, match.start())
        found.add(heads[-1])
        at = match.start()
    return frozenset(found)
