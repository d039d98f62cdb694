"""A verification in words: for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import msgspec

from fsdp2lint.plan import words as planning
from fsdp2lint.prove import ladder
from fsdp2lint.prove.compare import PLAN, Verification
from fsdp2lint.prove.equality import steps
from fsdp2lint.prove.equality.drawing import chart
from fsdp2lint.rehearse.rehearse import Rehearsal
from fsdp2lint.rehearse.results import Compared, Difference
from fsdp2lint.rehearse.words import (
    failure,
    record,
    spot,
    stood_in_for,
    text_at,
    violation_lines,
)
from fsdp2lint.system.paint import Line, painted, plain

SHOWN = 10
"""So many steps are shown; of more, the first and the last, and where the runs part."""

Number = float | None


def rendered(verification: Verification, *, colour: bool) -> str:
    """The whole report as text."""
    lines = list(_report(verification))
    return painted(lines) if colour else plain(lines)


def as_json(verification: Verification) -> str:
    """The whole report as one JSON object."""
    raw = msgspec.json.encode(
        {
            "exit_code": verification.exit_code,
            "equal": verification.exit_code == 0,
            "fault": verification.fault,
            "unproven": verification.unproven,
            "rtol": verification.rtol,
            "reason": verification.reason,
            "before": _side(verification.before),
            "after": verification.after and _side(verification.after),
            "compared": verification.compared,
            "rung": ladder.reached(verification.rungs),
            "rungs": [
                {"number": r.number, "title": r.title, "state": r.state, "why": r.why}
                for r in verification.rungs
            ],
            "plans": [planning.record(plan) for plan in verification.plans],
            "notes": verification.notes,
        }
    )
    return msgspec.json.format(raw, indent=2).decode() + "\n"


def _side(run: Rehearsal) -> dict[str, object]:
    ranks = run.run.ranks
    return {
        "script": run.request.target,
        "arguments": run.request.arguments,
        "completed": run.completed,
        "verdict": run.run.verdict,
        "seconds": round(run.run.seconds, 2),
        "ranks": [
            {"rank": r.rank, "outcome": r.how, "error": r.error, "frames": r.frames} for r in ranks
        ],
        "steps": [{"loss": loss, "norm": norm} for loss, norm in _curves(run)],
        "replaced": run.replaced,
        "violations": [record(violation) for violation in run.violations],
        "doubts": [record(doubt) for doubt in run.doubts],
        "notes": run.notes,
    }


def _curves(run: Rehearsal) -> list[tuple[Number, Number]]:
    ranks = run.run.ranks
    losses = list(steps.curve(ranks))
    return [(loss, steps.norm(ranks, step)) for step, loss in enumerate(losses)]


def _report(verification: Verification) -> Iterator[Line]:
    yield from _heading(verification)
    after = verification.after
    if verification.fault is not None:
        failed = verification.before if verification.fault == "BEFORE" else after
        yield [(f"{verification.fault} could not be run to its end:", "error")]
        yield from failure(failed or verification.before)
    if after is not None:
        yield from contract(verification)
        yield from _table(verification.before, after, verification.differences)
        before_loss = [loss for loss, _ in _curves(verification.before)]
        drawn = chart(before_loss, [loss for loss, _ in _curves(after)])
        yield from ([(row, "")] for row in drawn)
        yield []
    yield from (_amount(compared) for compared in verification.compared if compared.what)
    if verification.plans:
        yield []
        yield from planning.rendered(verification.plans)
    yield from _remarks(verification)
    yield from _verdict(verification)


def _heading(verification: Verification) -> Iterator[Line]:
    request = verification.before.request
    for title, run in (("BEFORE", verification.before), ("AFTER ", verification.after)):
        if run is not None:
            arguments = " ".join(run.request.arguments)
            line = f"{title} {run.request.target} {arguments}".rstrip()
            yield [(line, "strong"), (f"  ({run.run.seconds:.1f} s)", "dim")]
    kind = "GPU" if request.device == "cuda" else "CPU"
    tolerance = f"tolerance {verification.rtol:g}" if verification.rtol else "no tolerance"
    why = f", {tolerance} ({verification.reason})" if verification.reason else ""
    ranks = f"{request.nproc} {kind} rank{'' if request.nproc == 1 else 's'}"
    yield [(f"{ranks}, seed {request.seed}{why}", "dim")]
    yield from stood_in_for(verification.before.replaced, cuda=False)
    yield []


def contract(verification: Verification) -> Iterator[Line]:
    """What the new program breaks, and what may be wrong with it and was not with the old one."""
    after = verification.after
    if after is None:
        return
    for violation in after.violations:
        yield from violation_lines(violation)
    known = {doubt.message for doubt in verification.before.doubts}
    trained = {"parameters": "FSDP260"}  # what is equal in the end was trained alike
    alike = {
        trained.get(one.what) for one in verification.compared if one.count and not one.differences
    }
    for doubt in after.doubts:
        if doubt.message not in known and doubt.code not in alike:
            yield from violation_lines(doubt, "warning")


def _table(
    before: Rehearsal, after: Rehearsal, differences: Sequence[Difference]
) -> Iterator[Line]:
    rows = list(zip_longest(_curves(before), _curves(after), fillvalue=(None, None)))
    if not rows:
        return
    first = min((one.step for one in differences if one.step), default=0)
    yield [("   step    loss BEFORE     loss AFTER    norm BEFORE     norm AFTER", "dim")]
    hidden = False
    for step, ((loss, norm), (new_loss, new_norm)) in enumerate(rows, 1):
        near = step <= SHOWN // 2 or step > len(rows) - SHOWN // 2 or abs(step - first) <= 1
        if not near:
            if not hidden:
                yield [("    ...", "dim")]
            hidden = True
            continue
        hidden = False
        numbers = "".join(map(_number, (loss, new_loss, norm, new_norm)))
        line: Line = [(f"{step:7}{numbers}", "error" if step == first else "")]
        yield [*line, ("  <- first difference", "error")] if step == first else line
    yield []


def _number(number: Number) -> str:
    return f"{'-' if number is None else format(number, '.7g'):>15}"


def _amount(compared: Compared) -> Line:
    apart = compared.count - compared.identical
    if compared.unread:
        said, role = "not compared", "error"
    elif any(not one.missing for one in compared.differences):
        by = f", by {compared.relative:.2g} at most" if compared.relative else ""
        said, role = f"different{by}", "error"
    elif compared.differences:
        said, role = "not all in AFTER", "error"
    elif compared.unproven:
        said, role = f"nothing proven: {compared.unproven}", "error"
    elif not compared.count:
        said, role = "none to compare", "dim"
    elif apart:
        said, role = f"equal: {apart} of them to {compared.relative:.2g}, the rest exactly", ""
    else:
        said, role = "equal, exactly", ""
    return [(f"{compared.what:>18} ", "strong"), (f"{compared.count:6}  ", "dim"), (said, role)]


def _remarks(verification: Verification) -> Iterator[Line]:
    yield []
    for compared in verification.compared:
        for note in compared.notes:
            yield [("note: ", "note"), (f"{compared.what}: {note}", "")]
    for note in verification.notes:
        yield [("note: ", "note"), (note, "")]
    if verification.fault == "BEFORE":
        yield from ([("note: ", "note"), (note, "")] for note in verification.before.notes)
    if verification.after is not None:
        before = set(verification.before.notes)
        for note in verification.after.notes:
            if note not in before:
                yield [("note: ", "note"), (f"AFTER: {note}", "")]


def _ladder(verification: Verification) -> Iterator[Line]:
    shown = []
    for rung in ladder.whole(verification.rungs):
        how = (
            f" ({rung.why})"
            if rung.state == "not tried" and rung.why in ladder.HOW.values()
            else ""
        )
        shown.append(f"{rung.number} {rung.title}: {rung.state}{how}")
    yield [("ladder: ", "dim"), (" · ".join(shown), "dim")]
    for rung in verification.rungs:
        if rung.number < PLAN and rung.state == "failed":
            yield [("note: ", "note"), (f"rung {rung.number} ({rung.title}) fails: {rung.why}", "")]
        elif rung.number <= PLAN and rung.state == "not tried" and rung.why:
            yield [("note: ", "note"), (rung.why, "")]


def _places(difference: Difference) -> Iterator[Line]:
    """The lines of both programs at which the first difference shows."""
    for side, at in zip(("BEFORE", "AFTER "), difference.lines, strict=True):
        if at is not None:
            yield [(f"  {side} ", "dim"), (spot(at), "strong"), (f"  {text_at(at)}", "")]
    yield from ([("  why:   ", "dim"), (cause, "")] for cause in difference.causes)


def _verdict(verification: Verification) -> Iterator[Line]:
    yield from _ladder(verification)
    for rung in verification.rungs:
        if rung.number == PLAN and rung.state == "failed":
            yield [("different in the plan: ", "error"), (rung.why, "")]
    for number, one in enumerate(verification.differences):
        more = f" (and {one.more} more)" if one.more else ""
        yield [("different: ", "error"), (f"{one.message}{more}", "")]
        if number == 0:
            yield from _places(one)
    if verification.fault:
        yield [(f"Not verified: {verification.fault} failed.", "strong")]
    elif verification.unproven:
        text = f"Not verified: {verification.unproven}, so equal runs prove nothing."
        yield [(text, "strong")]
    elif verification.idle and not verification.unread:
        why = "neither program made an optimizer step or wrote a checkpoint"
        yield [(f"Not verified: {why}; is it the right script, are its arguments?", "strong")]
    elif verification.exit_code:
        yield [("Not equal.", "strong")]
    else:
        highest = ladder.reached(verification.rungs)
        height = "" if highest is None else f": rung {highest} of 4 ({ladder.TITLES[highest]})"
        unread = verification.unread
        kept = f", but for {unread} checkpoint{'s' * (unread > 1)} that could not be read"
        yield [(f"Equal{kept if unread else ''}{height}.", "strong")]
