"""A model is migrated whole or not at all: which lines belong to models that stay FSDP1's.

A model whose constructor stays and whose clipping or saving is rewritten trains differently and says
nothing. So where one piece of a model cannot be rewritten, nothing of what its runs do is; and a function
that two models share ties them together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsdp2lint.ask.inventory import Occurrence, inventory
from fsdp2lint.ask.unreached import NOT_RUN
from fsdp2lint.edits.layout import Layout
from fsdp2lint.migrate.leftovers import MARK, statement_at
from fsdp2lint.model.events import Wrapping

if TYPE_CHECKING:
    import libcst as cst

    from fsdp2lint.ask.program import Program
    from fsdp2lint.migrate.ledger import Entry
    from fsdp2lint.model.trace import Trace
    from fsdp2lint.source.source import Source

WRAPPER = "FullyShardedDataParallel"
Line = tuple[str, int]
"""A file and a line of its text before the migration, where a statement begins."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A line that cannot be rewritten: one that builds a model, or one that would break a rule of FSDP2."""

    path: str
    line: int
    column: int
    builds: bool
    shown: str
    """The place in words."""
    why: str = ""
    todo: str = ""

    def offset(self, source: Source) -> int:
        """Where the line says something, in the text of its file: a column may lie in the indentation."""
        at = Layout.of(source).offset(self.line, self.column)
        indented = source.text[at:]
        return at + len(indented) - len(indented.lstrip(" \t"))


@dataclass(frozen=True, slots=True)
class Held:
    """The lines of models that stay, and those of models that may be migrated."""

    lines: frozenset[Line]
    free: frozenset[Line]
    files: frozenset[str]
    """Files whose models stay although no run shows where they go."""
    apart: frozenset[str]
    """Files that no import joins to one of the places."""
    why: str
    stuck: tuple[Stuck, ...]

    def reason(self, entry: Entry) -> tuple[str, str]:
        """Why an entry stays, and what a person has to do there, which is said at the constructor alone."""
        for one in self.stuck:
            if one.todo and (one.path, one.line, one.column) == (
                entry.path,
                entry.line,
                entry.column,
            ):
                return one.why, one.todo
        return self.why, ""

    def holds(self, line: Line) -> bool:
        """Whether a line must stay as it is."""
        if line in self.lines or line[0] in self.files:
            return True
        return line not in self.free and line[0] not in self.apart


_BREAKS = "as FSDP2, "
_BUILDS = ("call fully_shard by hand", f"`{WRAPPER}` is FSDP1")
"""How the comments begin that an earlier run wrote where a model had to stay."""


def left_stuck(sources: Iterable[Source]) -> Iterator[Stuck]:
    """The lines for which an earlier run has left a model as it is: it stays until their comments go."""
    for source in sources:
        if source.document is not None:
            continue
        for number, line in enumerate(source.lines, 1):
            said = line.partition(MARK)[2].strip()
            builds = said.startswith(_BUILDS)
            if not builds and not said.startswith(_BREAKS):
                continue
            below = (n for n in range(number, len(source.lines)) if _is_code(source.lines[n]))
            at = next(below, None)
            if at is not None:
                shown = f"{source.path}:{at + 1}"
                shown += "" if builds else f": {said.removeprefix(_BREAKS)}"
                indent = len(source.lines[at]) - len(source.lines[at].lstrip())
                yield Stuck(source.path, at + 1, indent + 1, builds, shown)


def _is_code(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def builds_by_hand(entry: Entry) -> bool:
    """Whether an entry is a constructor, or a class derived from FSDP1's, that is left to a person."""
    is_wrapper = entry.kind == "symbol" and entry.symbol.rpartition(".")[2] == WRAPPER
    return is_wrapper and entry.code == "FSDP101" and entry.fate == "manual"


def opens_by_hand(entry: Entry) -> bool:
    """Whether an entry is a ``state_dict_type`` that runs come to and that is left to a person.

    On a model of FSDP2 it raises when it is left, whatever is in it.
    """
    is_context = entry.kind == "symbol" and entry.symbol.rpartition(".")[2] == "state_dict_type"
    return is_context and entry.fate == "manual" and entry.why != NOT_RUN


def held(program: Program, stuck: Iterable[Stuck]) -> Held:
    """What has to stay because of the places that cannot be rewritten; found in the program as it was."""
    places = sorted(stuck, key=lambda s: (s.path, s.line, s.column, s.shown, s.why, s.todo))
    mine = set(program.sources)
    lines = _Lines()
    runs = [
        (frozenset(lines.of_run(trace, mine)), any(e.by == "fsdp1" for e in trace.of(Wrapping)))
        for trace in program.traces
    ]
    marked = frozenset(lines.of_pieces(inventory(program)))
    begin = {one: lines.begin(program, one) for one in places}
    seeds = set(begin.values())
    stays = {number for number, (run, wraps) in enumerate(runs) if wraps and run & seeds}
    while True:
        tied = frozenset[Line]().union(*(runs[number][0] & marked for number in stays))
        more = {n for n, (run, wraps) in enumerate(runs) if wraps and n not in stays and run & tied}
        if not more:
            break
        stays |= more
    of_held = frozenset[Line]().union(*(runs[number][0] for number in stays))
    free = (run for number, (run, wraps) in enumerate(runs) if wraps and number not in stays)
    files = {one.path for one in places if one.builds and begin[one] not in of_held}
    at = {one.path for one in places}
    beside: frozenset[Source] = frozenset().union(
        *(group for group in program.groups if any(source.path in at for source in group))
    )
    apart = frozenset(source.path for source in mine - beside)
    builds = [one for one in places if one.builds] or places
    names = list(dict.fromkeys(one.shown for one in sorted(builds, key=lambda s: (s.path, s.line))))
    shown = " and ".join(names[:2]) + (" (and others)" if len(names) > 2 else "")
    because = (
        f"kept as FSDP1: {shown} cannot be rewritten, and a model is migrated whole or not at all"
        if any(one.builds for one in places)
        else f"kept as FSDP1: migrated, it would break a rule of FSDP2 at {shown}"
    )
    others = frozenset[Line]().union(*free) - of_held
    return Held(of_held, others, frozenset(files), apart, because, tuple(places))


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be migrated without the others: where it is built, and the lines of FSDP1 that its runs come by."""

    constructors: tuple[Stuck, ...]
    lines: frozenset[Line]


def models(program: Program) -> list[Model]:
    """The models of a program, in the order of the text; those whose runs share a use of FSDP1 are one."""
    mine = set(program.sources)
    lines = _Lines()
    marked = frozenset(lines.of_pieces(inventory(program)))
    found: list[tuple[frozenset[Line], frozenset[Stuck]]] = []
    for trace in program.traces:
        at = [e.at for e in trace.of(Wrapping) if e.by == "fsdp1" and e.at.source in mine]
        if not at:
            continue
        shared = frozenset(lines.of_run(trace, mine)) & marked
        built = frozenset(_constructor(one.source, one.node) for one in at)
        tied = [one for one in found if one[0] & shared]
        found = [one for one in found if one not in tied]
        found.append(
            (shared.union(*(one[0] for one in tied)), built.union(*(one[1] for one in tied)))
        )
    every = [Model(tuple(sorted(built, key=_in_the_text)), shared) for shared, built in found]
    return sorted(every, key=lambda model: _in_the_text(model.constructors[0]))


def _in_the_text(one: Stuck) -> tuple[str, int, int]:
    return one.path, one.line, one.column


def _constructor(source: Source, node: cst.CSTNode) -> Stuck:
    layout = Layout.of(source)
    line, column = layout.place(layout.span(node)[0])
    return Stuck(source.path, line, column, True, f"{source.path}:{line}")


class _Lines:
    """The first lines of the statements that nodes are in, each found once."""

    def __init__(self) -> None:
        self._known: dict[cst.CSTNode, Line] = {}

    def of_run(self, trace: Trace, mine: set[Source]) -> Iterator[Line]:
        for event in trace.events:
            if event.at.source in mine:
                yield self.of(event.at.source, event.at.node)

    def of_pieces(self, found: Sequence[Occurrence]) -> Iterator[Line]:
        for one in found:
            if one.kind not in ("import", "string", "launch", "setting"):
                yield self.of(one.source, one.node)

    def begin(self, program: Program, one: Stuck) -> Line:
        """The line on which the statement begins that a place is in."""
        for source in program.sources:
            if source.path == one.path:
                return self.of(source, statement_at(source, one.offset(source)))
        return one.path, one.line

    def of(self, source: Source, node: cst.CSTNode) -> Line:
        line = self._known.get(node)
        if line is None:
            layout = Layout.of(source)
            at = source.tree if node is source.tree else layout.statement(node)
            first = 1 if at is source.tree else layout.place(layout.span(at)[0])[0]
            line = self._known[node] = (source.path, first)
        return line
