"""What a report shows, as data; whoever has less to show leaves the rest empty."""

from __future__ import annotations

from typing import Literal

import msgspec

from fsdp2lint.plan.data import Plan
from fsdp2lint.prove.ladder import Rung
from fsdp2lint.rehearse.results import Compared

Outcome = Literal["preserved", "changed", "dropped", "manual", "open"]
Verdict = Literal["equal", "different", "proves nothing", "could not run"]


class Curve(msgspec.Struct, frozen=True):
    """A number by optimizer step in both runs; None where it was not finite or not there."""

    title: str
    before: tuple[float | None, ...]
    after: tuple[float | None, ...] = ()


class Entry(msgspec.Struct, frozen=True):
    """What became of one FSDP1 symbol."""

    path: str
    line: int
    symbol: str
    outcome: Outcome
    note: str = ""
    cell: int | None = None
    """The cell of a notebook in which the line is counted."""
    model: str = ""
    """The model that it is part of, in words."""

    @property
    def place(self) -> str:
        """The line, behind the cell of a notebook."""
        return str(self.line) if self.cell is None else f"cell {self.cell}:{self.line}"


class Report(msgspec.Struct, frozen=True):
    """A verification, a migration, or both."""

    before: str
    after: str
    verdict: Verdict | None = None
    """None where nothing was run."""
    rungs: tuple[Rung, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    """How it was run: label and value."""
    failure: str = ""
    """Why a run did not come to its end."""
    curves: tuple[Curve, ...] = ()
    compared: tuple[Compared, ...] = ()
    plans: tuple[Plan, ...] = ()
    """One, or those before and after."""
    diff: str = ""
    """Unified, of all files."""
    ledger: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()
    contract: str = ""
    """What the new program breaks of the contract, or may break, with the lines that show it."""
