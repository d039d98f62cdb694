"""Runs that need not be made again: what a project's files did before some of them got new texts.

A run from an entry depends on the modules that it loaded and on the functions in them that it looked into, on
which functions earlier runs had reached when it asked, and, where its budget ran out, on how large that was.
All of it is written down while it goes; where it is the same for a later version of the project, so are its
traces, event for event.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp2lint.interpret.annotations import is_empty_body
from fsdp2lint.interpret.functions import is_generator, words_of
from fsdp2lint.model.basic_values import noted, taken

if TYPE_CHECKING:
    import libcst as cst

    from fsdp2lint.interpret.machine import Machine
    from fsdp2lint.model.basic_values import Circular
    from fsdp2lint.model.trace import Trace
    from fsdp2lint.project.project import Project, Ration
    from fsdp2lint.source.source import Source

Key = tuple[str, str]
"""The way of running, and the path of the file in which the run begins."""
REST = "_rest"
"""The way that runs whatever a file defines and nothing has reached: it depends on all of its text."""
Bodies = Collection["cst.CSTNode"] | None
"""The functions whose bodies are different in the next text of a file, and the classes around them; None when more is."""


class Reached:
    """The bodies of functions that some run has reached, and what was asked of them since :meth:`listen`."""

    def __init__(self) -> None:
        self._bodies: set[cst.CSTNode] = set()
        self.choices: dict[str, tuple[str, ...]] = {}
        """The modules that a program could name where it names one of several, by the path of the program."""
        self.listen()

    def listen(self) -> None:
        """A run begins."""
        self.asked: dict[cst.CSTNode, bool] = {}
        self.added: set[cst.CSTNode] = set()

    def __contains__(self, node: cst.CSTNode) -> bool:
        answer = node in self._bodies
        if node not in self.added:
            self.asked.setdefault(node, answer)
        return answer

    def knows(self, node: cst.CSTNode) -> bool:
        """Whether some run has reached a body, asked by nobody who depends on it."""
        return node in self._bodies

    def add(self, bodies: Iterable[cst.CSTNode]) -> None:
        """The run that goes on has reached these."""
        self.added.update(bodies)
        self._bodies.update(bodies)


@dataclass(slots=True)
class Run:
    """What a run made, and all that it depended on."""

    traces: tuple[Trace, ...]
    modules: tuple[tuple[str, Source | None, bool], ...]
    """The paths of the modules that it came by, what was found there, and whether it was loaded."""
    rations: Sequence[Ration]
    asked: dict[cst.CSTNode, bool]
    reached: set[cst.CSTNode]
    machine: Machine
    circular: Sequence[Circular]
    """What it made that would not go by itself."""

    @property
    def size(self) -> int:
        """How many events its traces hold."""
        return sum(len(trace.events) for trace in self.traces)

    def forget(self) -> None:
        """Nobody asks for its traces any more: let go of what they know."""
        self.machine.forget()
        for one in self.circular:
            one.forget()

    def loaded(self, source: Source) -> bool:
        """Whether it ran anything of a file."""
        return any(one is source and loaded for _, one, loaded in self.modules)

    def saw(self, bodies: Bodies) -> bool:
        """Whether it looked into one of these functions and classes, or asked something of it that has another answer now;
        into something, when nobody knows which.
        """
        if bodies is None or not self.machine.looked.isdisjoint(bodies):
            return True
        return any(
            node in bodies and question(node, *given) is not answer
            for (question, node, given), answer in self.machine.answers.items()
        )

    def ask_again(self) -> None:
        """Let go of what its traces answered: a file that it loaded has another text."""
        for trace in self.traces:
            trace.forget_derived()


class Runs:
    """The runs of a project, kept for the next version of it."""

    def __init__(self) -> None:
        self.decoded: dict[str, Source | None] = {}
        """The files around the project that were read, for whoever reads them the next time."""
        self.dropped = 0
        """How many events the runs held that were forgotten."""
        self._runs: dict[Key, Run] = {}

    def know(self, source: Source) -> bool:
        """Whether any run ran something of a file."""
        return any(run.loaded(source) for run in self._runs.values())

    def forget(self) -> None:
        """Let go of all runs."""
        for key in list(self._runs):
            self._drop(key)

    def renew(self, changes: Mapping[Source, Bodies]) -> None:
        """These files have new texts: let go of the runs that saw anything of what is different."""
        forget_bodies()
        for source, bodies in changes.items():
            for key, run in list(self._runs.items()):
                if not run.loaded(source):
                    continue
                if run.saw(bodies) or key == (REST, source.path):
                    self._drop(key)
                else:
                    run.ask_again()

    def again(self, key: Key, project: Project, reached: Reached) -> Iterable[Trace] | None:
        """The traces of a run of which nothing can be another now; None when it has to be made."""
        reached.listen()
        run = self._runs.get(key)
        if run is None:
            return None
        if not _stands(run, project, reached):
            self._drop(key)
            reached.listen()
            return None
        project.budget.repeat(run.rations)
        reached.add(run.reached)
        reached.choices.setdefault(key[1], run.machine.choices)
        return run.traces

    def keep(
        self, key: Key, machine: Machine, reached: Reached, walk: Iterator[Trace]
    ) -> Iterator[Trace]:
        """Let a run make its traces, and keep them."""
        begun = len(machine.project.budget.rations) - 1  # the machine has its first one already
        since = noted()
        traces: list[Trace] = []
        for trace in walk:
            traces.append(trace)
            yield trace
        modules = ((n.path, n.source, n.loaded) for n in machine.namespaces.values())
        self._runs[key] = Run(
            tuple(traces),
            tuple(modules),
            machine.project.budget.rations[begun:],
            reached.asked,
            reached.added,
            machine,
            taken(since),
        )

    def _drop(self, key: Key) -> None:
        run = self._runs.pop(key)
        self.dropped += run.size
        run.forget()


def _stands(run: Run, project: Project, reached: Reached) -> bool:
    """Whether a run would do the same again; what it read is read again, in the same order."""
    if any((node in reached) is not answer for node, answer in run.asked.items()):
        return False
    if not project.budget.allows(run.rations):
        return False
    if any(way(project.files) != tree for way, tree in run.machine.recipes):
        return False
    for path, source, loaded in run.modules:
        found = None if os.path.isdir(path) else project.followed(path)
        if (found is None) is not (source is None) or (loaded and found is not source):
            return False
    return True


def forget_bodies() -> None:
    """Functions may have other bodies now: what is kept about their nodes does not count."""
    for kept in (is_generator, words_of, is_empty_body):
        kept.cache_clear()
