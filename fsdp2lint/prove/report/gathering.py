"""The data of a report, gathered from what a verification, its plans and a migration found."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from fsdp2lint.plan.data import Plan
from fsdp2lint.prove.compare import Verification
from fsdp2lint.prove.report.data import Curve, Entry, Report, Verdict
from fsdp2lint.prove.words import contract
from fsdp2lint.rehearse.rehearse import Rehearsal, first_dead
from fsdp2lint.rehearse.words import stood_in_for
from fsdp2lint.system.paint import plain


def report_of(
    verification: Verification,
    *,
    plans: Sequence[Plan] = (),
    diff: str = "",
    ledger: Sequence[Entry] = (),
) -> Report:
    """Everything that there is to show of a finished verification."""
    before, after = verification.before, verification.after
    return Report(
        _near(before.request.target),
        _near(after.request.target) if after else "",
        _verdict(verification),
        tuple(verification.rungs),
        tuple(_facts(verification)),
        _failure(verification),
        tuple(_curves(before, after)),
        tuple(verification.compared),
        tuple(plans),
        diff,
        tuple(ledger),
        tuple(verification.notes),
        plain(contract(verification)),
    )


def _near(path: str) -> str:
    """A path as seen from here, unless it lies elsewhere."""
    short = os.path.relpath(path)
    return path if short.startswith("..") else short


def _verdict(verification: Verification) -> Verdict:
    if verification.fault:
        return "could not run"
    if verification.unproven:
        return "proves nothing"
    return "different" if verification.differences else "equal"


def _facts(verification: Verification) -> Iterator[tuple[str, str]]:
    request = verification.before.request
    yield "ranks", f"{request.nproc} on {request.device.upper()}"
    yield "steps", str(len(verification.before.steps))
    if request.arguments:
        yield "arguments", " ".join(request.arguments)
    made_up = plain(stood_in_for(verification.before.replaced, cuda=False)).strip()
    if made_up:
        yield "not the real", made_up
    if not verification.fault:
        exact = "bit for bit" if not verification.rtol else f"{verification.rtol:g} relative"
        yield "equal means", f"{exact} ({verification.reason})"
    runs = [run for run in (verification.before, verification.after) if run is not None]
    yield "time", " + ".join(f"{run.run.seconds:.1f} s" for run in runs)


def _failure(verification: Verification) -> str:
    if not verification.fault:
        return ""
    run = verification.before if verification.fault == "BEFORE" else verification.after
    dead = first_dead(run.run.ranks) if run is not None else None
    if dead is None:
        why = run.run.verdict if run is not None else "not run"
        return f"{verification.fault} did not run to its end: {why}"
    places = [f"{_near(f.at.file)}:{f.at.line} in {f.function}" for f in dead.frames]
    lines = (f"{verification.fault}: rank {dead.rank} {dead.how}", *places, dead.error)
    return "\n".join(filter(None, lines))


def _curves(before: Rehearsal, after: Rehearsal | None) -> Iterator[Curve]:
    runs = [before, *([after] if after is not None else [])]
    for title, field in (("loss (mean of the ranks)", "mean"), ("gradient norm", "norm")):
        sides = [tuple(getattr(step, field) for step in run.steps) for run in runs]
        if any(value is not None for side in sides for value in side):
            yield Curve(title, *sides)
    yield from _rates(runs)


def _rates(runs: Sequence[Rehearsal]) -> Iterator[Curve]:
    """The learning rates of rank 0; groups with the same ones are listed once."""
    sides = [_by_group(run) for run in runs]
    reported = set()
    for number, groups in enumerate(zip_longest(*sides, fillvalue=())):
        if groups not in reported and any(groups):
            reported.add(groups)
            yield Curve(f"learning rate of group {number + 1}", *groups)


def _by_group(run: Rehearsal) -> list[tuple[float | None, ...]]:
    steps = run.run.ranks[0].steps if run.run.ranks else []
    return list(zip_longest(*(step.rates for step in steps)))
