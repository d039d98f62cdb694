"""A program that is run, saved and gone on with in working folders of its own, and the curves compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from fsdp2lint.prove.compare import SEED
from fsdp2lint.prove.equality import steps
from fsdp2lint.prove.places import Place
from fsdp2lint.rehearse import workfolder
from fsdp2lint.rehearse.launch import Launch
from fsdp2lint.rehearse.outcome import RankReport, Request, Step
from fsdp2lint.rehearse.rehearse import Rehearsal, rehearse
from fsdp2lint.rehearse.results import Compared, Difference, Task


def run(
    place: Place,
    arguments: Sequence[str],
    nproc: int,
    folder: Path,
    launch: Launch,
    goes_on_from: Path | None = None,
) -> Rehearsal:
    """Run a program in links to its files, with what an earlier run left in its folder."""
    work = workfolder.make(place.folder, folder / "work")
    if goes_on_from is not None:
        workfolder.carry(goes_on_from / "work", work)
    request = Request(
        place.target,
        str(folder),
        arguments=tuple(arguments),
        nproc=nproc,
        timeout=600.0,
        folder=str(work),
        root=str(place.folder),
        seed=SEED,
        gather=True,
    )
    return rehearse(request, lambda _: None, launch)


def different_steps(whole: Rehearsal, saved: Rehearsal, resumed: Rehearsal) -> list[Difference]:
    """How the steps of a run in two parts differ from those of one at a stretch.

    What is evaluated where the two parts meet is left out: it may come before the save or after the load.
    """
    count = len(saved.run.ranks[0].steps)
    compared = steps.compare(_part(whole, 0, count), _part(saved), 0.0)
    compared += steps.compare(_part(whole, count), _part(resumed), 0.0)
    return [one for part in compared for one in part.differences]


def _part(run: Rehearsal, start: int = 0, end: int | None = None) -> list[RankReport]:
    """Some of the steps that each rank reported, without what comes before the first and after the last of them."""
    return [
        msgspec.structs.replace(
            rank,
            steps=[
                step if number else _without_evaluation(step)
                for number, step in enumerate(rank.steps[start:end])
            ],
            rest=Step(),
            companions=[],
        )
        for rank in run.run.ranks
    ]


def _without_evaluation(step: Step) -> Step:
    calls = [call for call in step.calls if not call.evaluates]
    return msgspec.structs.replace(step, calls=calls)


def different_ends(whole: Rehearsal, resumed: Rehearsal) -> list[Difference]:
    """How the final values differ."""
    from fsdp2lint.prove.equality import apart

    folders = [Path(one.request.scratch) for one in (whole, resumed)]
    task, out = folders[1] / "task.json", folders[1] / "compared.json"
    finals = str(folders[0] / "final"), str(folders[1] / "final")
    task.write_bytes(msgspec.json.encode(Task(finals, [], 0.0)))
    apart.main(task, out)
    found = msgspec.json.decode(out.read_bytes(), type=list[Compared])
    return [one for part in found for one in part.differences]
