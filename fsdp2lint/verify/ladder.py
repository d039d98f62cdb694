"""The proof ladder: how far a migration has been shown to change nothing.

0 the text parses and is quiet under ``check`` · 1 every FSDP1 symbol is in the ledger · 2 the same modules
form the same groups in the plan · 3 a run on CPU ranks is equal · 4 a run on GPUs is equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

TITLES = ("text", "ledger", "plan", "run on CPU", "run on GPU")

State = Literal["reached", "failed", "not tried"]


class Rung(msgspec.Struct, frozen=True):
    """One rung and what was seen there."""

    number: int
    state: State
    why: str = ""

    @property
    def title(self) -> str:
        """What the rung is about."""
        return TITLES[self.number]


def rung(number: int, held: bool | None, why: str = "") -> Rung:
    """A rung by its evidence: None where nobody looked."""
    return Rung(number, "not tried" if held is None else "reached" if held else "failed", why)


def reached(rungs: Sequence[Rung]) -> int | None:
    """The highest rung that held, with none below it that failed; a rung may be left out."""
    highest = None
    for one in sorted(rungs, key=lambda one: one.number):
        if one.state == "failed":
            break
        if one.state == "reached":
            highest = one.number
    return highest


def text(files: Sequence[str]) -> Rung:
    """Rung 0: whether the files parse and ``check`` has nothing to say about them."""
    from fsdp2lint.runner import Batch, check

    report = check(Batch.of_files(files))
    found = [one for one in report.found if one.severity != "info"]
    if not found:
        return Rung(0, "reached", "`check` finds nothing")
    first = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    where = f"{first.place.path}:{first.place.range.line}"
    return Rung(0, "failed", f"`check` finds {first.rule.code} at {where}{more}")
