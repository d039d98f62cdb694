"""In which order runs are made: they share a budget, so those first that show the most of how a project trains."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fsdp2lint.interpret.imports import copied_from_torch
from fsdp2lint.project.links import is_second_rate

if TYPE_CHECKING:
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


def in_order(project: Project, programs: Iterable[Source]) -> list[Source]:
    """Training programs before others, tests last, those nearest to the root first.

    Of the training programs those come first that lead to files of the training to which none before leads: the
    variants of a program, which differ in settings, tell little that it did not tell.
    """
    ordered = sorted(programs, key=_training_first)
    if len(ordered) <= FEW:
        return ordered
    training = _Training(project)
    led = {source: training.led_to(source) for source in ordered if _training_first(source)[0] == 0}
    seen: set[str] = set()
    first = []
    for source in sorted(led, key=lambda one: (_training_first(one), -len(led[one]))):
        if not led[source] <= seen:
            first.append(source)
            seen |= led[source]
    return [*first, *(source for source in ordered if source not in first)]


def _training_first(source: Source) -> tuple[int, int]:
    rank = 2 * is_second_rate(source.path) + (not trains(source))
    return rank, source.path.replace("\\", "/").count("/")


def trains(source: Source) -> bool:
    """Whether a program is one that trains, by its name or by a word of its text."""
    path = source.path.replace("\\", "/")
    return "train" in path or "finetune" in path or "optimizer" in source.text


def workers_first(source: Source) -> tuple[bool, bool, int]:
    """Sorts the files whose functions and classes run as no program has reached them.

    First those that shard and train, nearest to the root: their classes are workers that something out of sight
    starts. Tests and copies of torch come last: with what is theirs they would use up what all share.
    """
    aside = is_second_rate(source.path) or copied_from_torch(source.path) != ""
    trains = "optim" in source.text and any(word in source.text for word in ("fully_shard", "FSDP"))
    return aside, not trains, source.path.replace("\\", "/").count("/") if trains else 0


class _Training:
    """The files of a project that hold a part of the training, and how imports lead to them."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._imports: dict[str, tuple[str, ...]] = {}
        self._trains: dict[str, bool] = {}

    def led_to(self, program: Source) -> frozenset[str]:
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
        return frozenset(path for path in seen if path != start and self._holds_training(path))

    def _imported_by(self, path: str, source: Source) -> tuple[str, ...]:
        if path not in self._imports:
            self._imports[path] = tuple(self._project.imported_by(source))
        return self._imports[path]

    def _holds_training(self, path: str) -> bool:
        if path not in self._trains:
            source = self._project.passed_through(path)
            self._trains[path] = source is not None and _TRAINS.search(source.text) is not None
        return self._trains[path]
