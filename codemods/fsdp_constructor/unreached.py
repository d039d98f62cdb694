"""Files that work inside FSDP1, and that nothing runs any more when no model is wrapped by it."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Account, Program, Source, Step, inventory, is_unreached

from .._common.loop_insides import insides
from .derived import still_wraps

WHY = (
    "nothing imports this file, and no model is FSDP1's any more: delete it, or leave it for others"
)


def unreached(program: Program) -> Iterator[Step]:
    """What works inside FSDP1 in such files, once the program wraps no model by it."""
    if still_wraps(program):
        return
    inside = [(left.source, left.node) for left in insides(program, ())]
    found = [one for one in inventory(program) if one.kind not in ("import", "launch")]
    here = [(one.source, one.node) for one in found]
    files: dict[Source, bool] = {source: is_unreached(program, source) for source, _ in inside}
    for source, node in (*inside, *here):
        if files.get(source):
            yield Step((), (Account(source, node, "preserved", WHY),))
