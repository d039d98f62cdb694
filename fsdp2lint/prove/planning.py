"""Rung 2 of the proof ladder: both programs planned for any number of ranks, in one process each."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fsdp2lint.plan import CannotPlan, Plan, compare_plans, plan
from fsdp2lint.prove import ladder
from fsdp2lint.prove.compare import PLAN, Options
from fsdp2lint.prove.places import Place
from fsdp2lint.rehearse import workfolder
from fsdp2lint.rehearse.outcome import Request
from fsdp2lint.system.plain import count


def planned(
    before: Place, after: Place, options: Options, world: int
) -> tuple[list[Plan], ladder.Rung]:
    """Both plans for ``world`` ranks, and whether they come to the same.

    Without both plans nobody has looked at the rung; it says why.
    """
    plans = []
    with tempfile.TemporaryDirectory(prefix="fsdp2lint-") as scratch:
        for side, place in (("before", before), ("after", after)):
            folder = workfolder.make(place.folder, Path(scratch).resolve() / side)
            request = Request(
                place.target,
                "",
                place.module,
                (
                    *place.arguments,
                    *(options.resume[0] if options.resume else options.arguments),
                ),
                timeout=options.timeout,
                patches=options.patches,
                folder=str(folder),
                root=str(place.folder),
                environment=place.environment,
                made_up=options.made_up,
            )
            try:
                plans.append(plan(request, world))
            except CannotPlan as problem:
                return plans, ladder.rung(PLAN, None, f"no plan of {side.upper()}: {problem}")
    return plans, climbed(plans[0], plans[1])


def climbed(before: Plan, after: Plan) -> ladder.Rung:
    """Rung 2 of the proof ladder: whether both plans come to the same, memory left aside."""
    essential = [one for one in compare_plans(before, after) if one.essential]
    if essential:
        more = f" and {len(essential) - 1} more" if len(essential) > 1 else ""
        return ladder.rung(2, False, essential[0].message + more)
    units = count(sum(len(model.units) for model in after.models), "unit")
    return ladder.rung(2, True, f"the same {units} on {after.world} ranks")
