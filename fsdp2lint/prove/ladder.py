"""The proof ladder: how far a migration has been shown to change nothing.

0 the text parses, ``check`` finds no error in it and ``migrate`` leaves it alone · 1 every FSDP1 symbol is in the
ledger · 2 the same modules form the same groups in the plan · 3 a run on CPU ranks is equal · 4 a run on
GPUs is equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from fsdp2lint.check.diagnostics import Diagnostic

TITLES = ("text", "ledger", "plan", "run on CPU", "run on GPU")

HOW = {1: "--ledger", 2: "--world-size", 4: "--device cuda"}
"""What asks for a rung that a verification does not try by itself."""

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


def whole(rungs: Sequence[Rung]) -> list[Rung]:
    """All rungs from the lowest up; those that were not run are listed with the option that runs them."""
    seen = {one.number: one for one in rungs}
    return [seen.get(n, rung(n, None, HOW.get(n, ""))) for n in range(len(TITLES))]


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
    """Rung 0: whether the files parse, ``check`` finds no error and ``migrate`` would change nothing more.

    A warning, of memory that every rank takes for example, is reported and is no failure.
    """
    from fsdp2lint.check.runner import Batch, check

    found = check(Batch.of_files(files)).found
    errors = [one for one in found if one.severity == "error"]
    warnings = [one for one in found if one.severity == "warning"]
    why = _said(errors) or _unstable(files)
    said = _said(warnings).replace("finds", "warns of") or "`check` finds nothing"
    return rung(0, not why, why or f"{said}, `migrate` changes nothing")


def _said(found: Sequence[Diagnostic]) -> str:
    """What ``check`` finds, a file that does not parse included; empty when nothing."""
    if not found:
        return ""
    first = found[0]
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    where = f"{first.place.path}:{first.place.range.line}"
    return f"`check` finds {first.rule.code} at {where}{more}"


def _unstable(files: Sequence[str]) -> str:
    """What ``migrate`` would still change; empty when nothing."""
    from fsdp2lint.catalogue import knowledge
    from fsdp2lint.migrate.engine import migrate
    from fsdp2lint.migrate.files import choose

    chosen = choose(files)
    migration = migrate(chosen.sources, knowledge.codemods(), chosen.roots)
    if migration.failures:
        return f"`migrate` fails: {migration.failures[0]}"
    if not migration.changed:
        return ""
    more = f" and {len(migration.changed) - 1} more" if len(migration.changed) > 1 else ""
    return f"`migrate` would change {migration.changed[0][0].path}{more}"
