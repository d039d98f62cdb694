"""The interpreter, tested by reading: each fixture says at the end of its lines what happens there.

A file under ``fixtures/traces`` holds many *shapes*, each begun by a line ``# shape: what it is about``;
what stands before the first of them belongs to all. A folder with a ``main.py`` is one shape of several
files. The expectations of a line, separated by `` ; ``:

    # trace: sharded model                       an event with these words happens here
    # trace: sharded model | when cfg.fsdp       … under exactly these guards (``always``: under none)
    # trace: sharded model | after sharded head  … and another event came before it in the same run
    # trace: sharded model | given mesh=mesh     … with these options (``and more``: and unknown ones)
    # trace: optimizer built over p | taken before sharded model     … and the parameters were read then
    # trace: sharded m | through f(model) > g(m) … and these project calls led here, outermost first
    # trace: forward of m | within torch.no_grad(…)                  … inside this context manager
    # trace: not sharded model [| when …]        nothing with these words happens here
    # trace: nothing                             nothing but calls happens here

A line that speaks of a kind of event speaks of all events of that kind on it; and every ``fully_shard``,
wrapper and optimizer of a fixture must be spoken of.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdp2lint.interpret.entries import traces
from fsdp2lint.model.events import (
    Assigned,
    Augmented,
    Called,
    Escaped,
    Event,
    Exited,
    Iterated,
    Operated,
    OptimizerBuilt,
    Returned,
    Sharded,
    Wrapping,
    Written,
)
from fsdp2lint.model.trace import Trace
from fsdp2lint.project.project import Project
from fsdp2lint.source.reading import read as read_source
from fsdp2lint.source.source import Source

FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"
MARK = "# trace: "
SHAPE = "# shape: "
QUIET = (Called, Escaped, Exited, Assigned, Augmented, Iterated, Operated, Returned, Written)
ANNOUNCED = (Sharded, Wrapping, OptimizerBuilt)
Place = tuple[str, int]


@dataclass(frozen=True)
class Expectation:
    """One expected event (or, with ``absent``, one that must not happen) and its conditions."""

    words: str
    conditions: tuple[str, ...]
    absent: bool

    @classmethod
    def read(cls, text: str) -> Expectation:
        """Read one expectation: words, then conditions behind bars."""
        words, *conditions = (part.strip() for part in text.split(" | "))
        absent = words.startswith("not ")
        return cls(words.removeprefix("not "), tuple(conditions), absent)

    def __str__(self) -> str:
        return ("not " if self.absent else "") + " | ".join((self.words, *self.conditions))


@dataclass(frozen=True)
class Shape:
    """A small program: its first source is the entry."""

    name: str
    sources: tuple[Source, ...]

    def expected(self) -> dict[Place, tuple[Expectation, ...]]:
        """The expectations of all its lines."""
        return {
            (os.path.abspath(source.path), number): expectations
            for source in self.sources
            for number, expectations in expectations_of(source)
        }


def expectations_of(source: Source) -> Iterator[tuple[int, tuple[Expectation, ...]]]:
    """The lines of a source that say what happens there."""
    for number, line in enumerate(source.text.splitlines(), 1):
        _, found, said = line.partition(MARK)
        if found:
            said = re.split(r"\s+#\s", said)[0]
            yield number, tuple(Expectation.read(one) for one in said.split(" ; "))


def shapes() -> Iterator[Shape]:
    """Every fixture."""
    for path in sorted(FIXTURES.glob("*.py")):
        yield from shapes_of(path)
    for path in sorted(FIXTURES.glob("**/main.py")):
        others = (p for p in sorted(path.parent.rglob("*.py")) if p != path)
        sources = tuple(read_source(p) for p in (path, *others))
        yield Shape(f"{path.parent.parent.name}: {path.parent.name}", sources)


def shapes_of(path: Path) -> Iterator[Shape]:
    """The shapes of one file, each with what stands before the first, all on their own lines."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    begins = [i for i, line in enumerate(lines) if line.startswith(SHAPE)]
    for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        gap = ["\n"] * (begin - begins[0])
        text = "".join([*lines[: begins[0]], *gap, *lines[begin:end]])
        title = lines[begin].removeprefix(SHAPE).strip()
        yield Shape(f"{path.stem}: {title}", (Source(str(path), text),))


def complaints(shape: Shape) -> list[str]:
    """What a shape expects and did not get, and what it got and did not expect."""
    runs = list(traces(Project.of(shape.sources[:1])))
    happened: dict[Place, list[tuple[Trace, Event]]] = defaultdict(list)
    for run in runs:
        for event in run:
            happened[place_of(event)].append((run, event))
    expected = shape.expected()
    found: list[str] = []
    for place, expectations in expected.items():
        found += (
            f"{shown(place)}: {complaint}" for complaint in compare(expectations, happened[place])
        )
    paths = {os.path.abspath(s.path) for s in shape.sources}
    for place, events in happened.items():
        if place not in expected and place[0] in paths:
            said = {e.words() for _, e in events if isinstance(e, ANNOUNCED)}
            found += (f"{shown(place)}: nobody expects {words!r}" for words in sorted(said))
    return found


def place_of(event: Event) -> Place:
    """The file and line of an event."""
    return os.path.abspath(event.at.source.path), event.at.line


def shown(place: Place) -> str:
    """A place for the reader."""
    return f"{os.path.relpath(place[0], FIXTURES)}:{place[1]}"


def compare(
    expectations: Sequence[Expectation], happened: Sequence[tuple[Trace, Event]]
) -> Iterator[str]:
    """The disagreements on one line."""
    there = "; there: " + (", ".join(sorted({said_of(e) for _, e in happened})) or "nothing")
    if [str(e) for e in expectations] == ["nothing"]:
        loud = sorted({said_of(e) for _, e in happened if not isinstance(e, QUIET)})
        if loud:
            yield f"expected nothing, there: {', '.join(loud)}"
        return
    wanted: dict[str, list[Expectation]] = defaultdict(list)
    kinds: set[type[Event]] = set()
    for expectation in expectations:
        alike = [(t, e) for t, e in happened if e.words() == expectation.words]
        meets = [e for t, e in alike if meets_all(t, e, expectation)]
        if expectation.absent:
            if meets:
                yield f"expected {str(expectation)!r}{there}"
            continue
        wanted[expectation.words].append(expectation)
        kinds |= {type(e) for _, e in alike}
        if not meets:
            yield f"expected {str(expectation)!r}{there}"
    for run, event in happened:
        if not isinstance(event, tuple(kinds)):
            continue
        mine = wanted.get(event.words(), [])
        if not any(meets_all(run, event, expectation) for expectation in mine):
            yield f"not expected {said_of(event)!r}{there}"


def said_of(event: Event) -> str:
    """An event with its guards and options, for the reader."""
    parts = [event.words()]
    if event.guards:
        parts.append(event.guards.words())
    if isinstance(event, Sharded | Wrapping) and event.options:
        parts.append(options_of(event))
    return " | ".join(parts)


def options_of(event: Sharded | Wrapping) -> str:
    """``given mesh=mesh and more``."""
    said = ", ".join(f"{name}={value.words()}" for name, value in sorted(event.options.items()))
    return f"given {said}" + (" and more" if getattr(event, "open", False) else "")


def meets_all(run: Trace, event: Event, expectation: Expectation) -> bool:
    """Whether an event meets every condition of an expectation."""
    return all(meets(run, event, condition) for condition in expectation.conditions)


def meets(run: Trace, event: Event, condition: str) -> bool:
    """Whether an event meets one condition.

    Raises:
        ValueError: no such condition.
    """
    keyword, _, rest = condition.partition(" ")
    if keyword in ("when", "always"):
        return event.guards.words() == condition.removeprefix("always")
    if keyword == "after":
        return any(e.order < event.order for e in run if e.words() == rest)
    if keyword == "through":
        return " > ".join(site.code for site in event.calls) == rest
    if keyword == "within":
        return any(context.words() == rest for context in event.within)
    if keyword == "given" and isinstance(event, Sharded | Wrapping):
        return options_of(event) == condition
    if keyword == "taken" and isinstance(event, OptimizerBuilt):
        side, _, words = rest.partition(" ")
        orders = [e.order for e in run if e.words() == words]
        taken = [p.taken for p in event.over]
        if not orders or not taken or None in taken:
            return False
        if side == "before":
            return all(t is not None and t <= min(orders) for t in taken)
        if side == "after":
            return all(t is not None and t > max(orders) for t in taken)
    raise ValueError(f"no such condition: {condition!r}")


ALL = list(shapes())


@pytest.mark.parametrize("shape", ALL, ids=lambda shape: shape.name)
def test_what_happens_is_what_the_fixture_says(shape: Shape) -> None:
    found = complaints(shape)
    assert not found, "\n".join(["", shape.name, *found])


def test_the_fixtures_are_many_and_each_says_something() -> None:
    silent = [shape.name for shape in ALL if not shape.expected()]
    assert not silent
    assert len(ALL) >= 160
    names = [shape.name for shape in ALL]
    assert len(names) == len(set(names))


def test_no_expectation_is_overlooked() -> None:
    places = {place for shape in ALL for place in shape.expected()}
    marked = sum(
        line.count(MARK)
        for path in FIXTURES.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
    )
    assert len(places) == marked


HEAD = """import torch
from torch.distributed.fsdp import fully_shard

def train(model, cfg):
    if cfg.fsdp:
"""


@pytest.mark.parametrize(
    "said",
    [
        "# trace: sharded head",
        "# trace: nothing",
        "# trace: not sharded model",
        "# trace: not sharded model | when cfg.fsdp",
        "# trace: sharded model | always",
        "# trace: sharded model | when not cfg.fsdp",
        "# trace: sharded model | given mesh=mesh",
        "# trace: sharded model | given reshard_after_forward=True and more",
        "# trace: sharded model | after backward",
        "# trace: sharded model | through train(model)",
        "# trace: sharded model | within torch.no_grad(…)",
        "# trace: sharded model ; sharded model.layers",
        "",
    ],
)
def test_the_checker_finds_what_is_wrong(said: str) -> None:
    text = f"{HEAD}        fully_shard(model, reshard_after_forward=True)  {said}\n"
    assert complaints(Shape("", (Source("train.py", text),)))


@pytest.mark.parametrize("said", ["taken before", "taken after"])
def test_the_checker_knows_when_parameters_were_read(said: str) -> None:
    shard = "        fully_shard(model)  # trace: sharded model\n"
    build = f"        torch.optim.SGD(model.parameters())  # trace: optimizer built over model.parameters() | {said} sharded model\n"
    forward = complaints(Shape("", (Source("train.py", HEAD + shard + build),)))
    backward = complaints(Shape("", (Source("train.py", HEAD + build + shard),)))
    assert bool(forward) is (said == "taken before")
    assert bool(backward) is (said == "taken after")


def test_the_checker_accepts_what_is_right() -> None:
    said = "# trace: sharded model | when cfg.fsdp | given reshard_after_forward=True"
    text = f"{HEAD}        fully_shard(model, reshard_after_forward=True)  {said}\n"
    assert not complaints(Shape("", (Source("train.py", text),)))


def test_an_unknown_condition_is_refused() -> None:
    text = f"{HEAD}        fully_shard(model)  # trace: sharded model | whenever cfg.fsdp\n"
    with pytest.raises(ValueError, match="no such condition"):
        complaints(Shape("", (Source("train.py", text),)))
