"""A rehearsal in words: for people, and as JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from fsdp2lint.check.report import Severity
from fsdp2lint.rehearse.outcome import Frame, MadeUp, RankReport, Request, Spot, Violation
from fsdp2lint.rehearse.rehearse import Rehearsal, Seen, first_dead
from fsdp2lint.source.frames import Mark, frame
from fsdp2lint.source.reading import read
from fsdp2lint.source.source import Range, Unreadable
from fsdp2lint.system.paint import Line, painted, plain
from fsdp2lint.system.plain import count

SHOWN = 12
"""So many steps are shown; of more, the first and the last."""
FRAMES = 8
LAST_LINES = 15
LINE = 200
"""So long is what a rank says that lost the others."""

_HOW = {
    "running": "was stopped",
    "ended": "ended",
    "stopped": "made its steps",
    "raised": "raised",
    "lost": "lost the others",
    "died": "died",
    "hung": "waited",
    "busy": "was at work",
}
_ABSENT = re.compile(r"No module named '(\w+)")
_AWAY = re.compile(
    r"huggingface\.co|HF_HUB_OFFLINE|LocalEntryNotFound|GatedRepo|RepositoryNotFound|ConnectionError|ConnectTimeout|URLError|"
    r"Max retries exceeded|[Nn]ame resolution|Name or service not known|Couldn't reach|urlopen error|FileNotFoundError"
)
"""How errors read whose cause is data or a model that is not on this machine."""
_REMOVED = re.compile(
    r"cannot import name '(\w+)' from '(torch|transformers|accelerate|lightning|datasets)\b"
)
_REFUSED = "SystemExit: 2"
"""How parsers of arguments end a script."""
_VERDICTS = {"timeout": "the time was over", "deadlock": "all ranks wait for each other"}


def rendered(rehearsal: Rehearsal, *, colour: bool) -> str:
    """The whole report as text."""
    lines = list(_report(rehearsal))
    return painted(lines) if colour else plain(lines)


def as_json(rehearsal: Rehearsal) -> str:
    """The whole report as one JSON object."""
    run = rehearsal.run
    raw = msgspec.json.encode(
        {
            "script": rehearsal.request.target,
            "exit_code": rehearsal.exit_code,
            "verdict": run.verdict,
            "seconds": round(run.seconds, 2),
            "ranks": [
                {
                    "rank": r.rank,
                    "outcome": r.how,
                    "error": r.error,
                    "waits_in": r.waits_in,
                    "frames": r.frames,
                }
                for r in run.ranks
            ],
            "steps": [{"loss": s.loss, "mean": s.mean, "norm": s.norm} for s in rehearsal.steps],
            "replaced": rehearsal.replaced,
            "notes": rehearsal.notes,
            "violations": [record(violation) for violation in rehearsal.violations],
            "doubts": [record(doubt) for doubt in rehearsal.doubts],
        }
    )
    return msgspec.json.format(raw, indent=2).decode() + "\n"


def record(violation: Violation) -> dict[str, Any]:
    """A break of the contract as a record of JSON."""
    at = violation.at
    return {
        "code": violation.code,
        "name": _name(violation.code),
        "message": violation.message,
        "filename": at.file if at else None,
        "location": {"row": at.line, "column": 1} if at else None,
        "related": [
            {"filename": spot.file, "location": {"row": spot.line, "column": 1}, "message": label}
            for spot, label in violation.because
        ],
    }


def _report(rehearsal: Rehearsal) -> Iterator[Line]:
    yield from failure(rehearsal)
    for violation in rehearsal.violations:
        yield from violation_lines(violation)
    for doubt in rehearsal.doubts:
        yield from violation_lines(doubt, "warning")
    yield from _summary(rehearsal)


def failure(rehearsal: Rehearsal) -> Iterator[Line]:
    """Why a script did not come to its end, whoever failed of itself first; nothing when it did."""
    run = rehearsal.run
    if not run.ranks:
        late = "the time was over before torchrun had started the ranks:"
        none = "torchrun did not start the ranks:"
        yield [(late if run.verdict == "timeout" else none, "strong")]
        yield from ([("  " + line, "")] for line in run.noise.splitlines()[-LAST_LINES:])
        yield []
        return
    if run.status and run.verdict == "over" and all(rank.done for rank in run.ranks):
        yield [(f"after the script's end torchrun left with status {run.status}", "error")]
    dead = first_dead(run.ranks)
    if dead is not None:
        yield [(f"rank {dead.rank} {_HOW[dead.how]}", "error"), (_where(dead), "strong")]
        yield from _stack(dead.frames)
        if dead.error:
            yield [("  " + line, "") for line in [dead.error.replace("\n", "\n  ")]]
        elif dead.how == "died":
            last = run.errors[dead.rank].splitlines()[-LAST_LINES:]
            yield from ([("  " + line, "")] for line in last)
        if dead.error == _REFUSED:
            yield from ([("  " + line, "")] for line in run.errors[dead.rank].splitlines()[-1:])
        yield from (
            [("help: ", "help"), (way, "")] for way in ways(dead.error, rehearsal.request.made_up)
        )
        yield []
    if run.verdict != "over" or any(rank.how in ("hung", "lost") for rank in run.ranks):
        if run.verdict in _VERDICTS:
            yield [(f"{_VERDICTS[run.verdict]}:", "error")]
        for rank in run.ranks:
            if rank is not dead:
                how = "was ended" if rank.how == "lost" and not rank.error else _HOW[rank.how]
                inside = f", in `{rank.waits_in}`" if rank.waits_in else ""
                yield [
                    (f"rank {rank.rank} {how}", "strong"),
                    (_where(rank) + inside, ""),
                ]
                if dead is None:
                    yield from _stack(rank.frames)
                    yield from ([("  " + line[:LINE], "")] for line in rank.error.splitlines()[:1])
        if run.verdict == "timeout" and any(rank.how == "busy" for rank in run.ranks):
            faster = ", ".join(_faster(rehearsal.request))
            yield [("help: ", "help"), (faster, "")]
        yield []


def _faster(request: Request) -> Iterator[str]:
    if request.steps is None:
        yield "`--steps 3` ends sooner"
    if not request.made_up.small:
        yield "`--small` builds small models"
    yield "arguments after `--` may make batches and evaluations smaller"
    yield "`--timeout` gives more seconds"


def ways(error: str, made_up: MadeUp) -> Iterator[str]:
    """What the user can do about an error."""
    missing = _ABSENT.search(error)
    faked = made_up.missing
    if missing:
        name = missing[1]
        one = f"`--fake-module {name}` has it do nothing"
        yield f"install `{name}`" + (
            f"; {one}" if faked else f", or make it up: `--fake`, or else {one}"
        )
    elif removed := _REMOVED.search(error):
        yield f"the installed {removed[2]} has no `{removed[1]}`: run the script with the release that it was written for"
    elif _AWAY.search(error) and not faked:
        yield "`--fake` makes up data, tokenizers and pretrained models that this machine lacks"
    elif error == _REFUSED:
        yield "the script refused its arguments: write them after `--`"


def _where(rank: RankReport) -> str:
    return f" at {spot(rank.frames[-1].at)}" if rank.frames else ""


def _stack(frames: list[Frame]) -> Iterator[Line]:
    if len(frames) > FRAMES:
        yield [(f"  ... {len(frames) - FRAMES} more", "dim")]
    for call in frames[-FRAMES:]:
        yield [(f"  {spot(call.at)}", ""), (f" in {call.function}", "dim")]
        lines = _lines(call.at.file)
        if call.at.line <= len(lines):
            yield [("    " + lines[call.at.line - 1].strip(), "")]


@cache
def _name(code: str) -> str:
    """The name of the rule that a run shows to be broken; loading the rules takes a while."""
    from fsdp2lint.catalogue.knowledge import rules

    return next(rule.name for rule in rules() if rule.code == code)


def violation_lines(violation: Violation, severity: Severity = "error") -> Iterator[Line]:
    """A break of the contract, or what may be one, with the lines of the script that show it."""
    yield [
        (f"{severity}[{violation.code}]", severity),
        (f" {_name(violation.code)}: {violation.message}", "strong"),
    ]
    points = [(spot, label) for spot, label in violation.because]
    if violation.at is not None:
        points.insert(0, (violation.at, ""))
    gutter = max((len(str(spot.line + 1)) for spot, _ in points), default=1)
    for file in dict.fromkeys(spot.file for spot, _ in points):
        here = [(spot, label) for spot, label in points if spot.file == file]
        yield [(" " * gutter, ""), ("--> ", "gutter"), (spot(here[0][0]), "")]
        lines = _lines(file)
        marks = [
            _mark(spot, label, lines, severity if spot is violation.at else "mark")
            for spot, label in dict(here).items()
            if spot.line <= len(lines)
        ]
        yield from frame(lines, marks, gutter) if marks else ()
    yield []


def _mark(spot: Spot, label: str, lines: list[str], role: str) -> Mark:
    text = lines[spot.line - 1].rstrip()
    start = len(text) - len(text.lstrip())
    span = Range(spot.line, start + 1, spot.line, max(len(text), start + 1) + 1)
    return Mark(span, label, role != "mark", role)


_OTHER_KINDS = ("made up: ", "made small: ", "put on the path: ")
"""How the notes begin of what is no part of CUDA's."""


def stood_in_for(replaced: dict[str, int], *, cuda: bool = True) -> Iterator[Line]:
    """What the script did not get as it asked for it: a line for each kind, each thing with how often."""
    kinds: dict[str, list[str]] = {}
    for what, times in replaced.items():
        kind = next((one for one in _OTHER_KINDS if what.startswith(one)), "")
        if not kind and not cuda:
            continue
        text = what.removeprefix(kind)
        kinds.setdefault(kind, []).append(f"{text} {times}x" if times > 1 else text)
    for kind in sorted(kinds):
        yield [(kind or "replaced by the CPU's: ", "dim"), (", ".join(kinds[kind]), "")]


def _summary(rehearsal: Rehearsal) -> Iterator[Line]:
    request, run = rehearsal.request, rehearsal.run
    steps = rehearsal.steps
    kind = "GPU rank" if request.device == "cuda" else "CPU rank"
    what = f"{request.target} on {count(request.nproc, kind)}"
    yield [(f"{what}: {count(len(steps), 'optimizer step')} in {run.seconds:.1f} s", "strong")]
    if steps:
        yield [("   step   loss (rank 0)     loss (mean)   gradient norm", "dim")]
        yield from _table(steps)
    if rehearsal.replaced:
        yield from stood_in_for(rehearsal.replaced)
    for note in rehearsal.notes:
        yield [("note: ", "note"), (note, "")]
    if rehearsal.violations:
        yield [
            (f"Found {count(len(rehearsal.violations), 'violation')} of the contract.", "strong")
        ]
    elif rehearsal.completed:
        yield [("Nothing broke the contract.", "strong")]
    else:
        yield [("The script could not be rehearsed to its end.", "strong")]


def _table(steps: list[Seen]) -> Iterator[Line]:
    for number, step in enumerate(steps, 1):
        if len(steps) > SHOWN and SHOWN // 2 < number <= len(steps) - SHOWN // 2:
            if number == SHOWN // 2 + 1:
                yield [("    ...", "dim")]
            continue
        yield [(f"{number:7}{_number(step.loss)}{_number(step.mean)}{_number(step.norm)}", "")]


def _number(number: float | None) -> str:
    return f"{'-' if number is None else format(number, '.6g'):>16}"


def spot(at: Spot) -> str:
    """A place as people write it."""
    short = os.path.relpath(at.file)
    return f"{at.file if short.startswith('..') else short}:{at.line}"


def text_at(at: Spot) -> str:
    """The text of a line; empty where it cannot be read."""
    lines = _lines(at.file)
    return lines[at.line - 1].strip() if at.line <= len(lines) else ""


def _lines(file: str) -> list[str]:
    try:
        return list(read(file).lines)
    except Unreadable:  # a script made at run time: the place is told without its text
        return []
