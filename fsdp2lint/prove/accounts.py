"""The ledger of a migration, as ``fsdp2lint migrate --output-format json`` writes it: rung 1 of the ladder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fsdp2lint.prove.ladder import Rung, rung
from fsdp2lint.prove.report import Entry
from fsdp2lint.prove.report.data import Outcome


class BadLedger(Exception):
    """The file is not there, or is no ledger; the message says which."""


class _Place(msgspec.Struct):
    row: int


class _Occurrence(msgspec.Struct):
    filename: str
    location: _Place
    symbol: str
    fate: Outcome
    why: str = ""
    todo: str = ""
    cell: int | None = None


class _Ledger(msgspec.Struct):
    occurrences: list[_Occurrence]
    complete: bool


def read(file: str) -> tuple[list[Entry], Rung]:
    """The entries of a ledger, and whether everything of FSDP1 is accounted for.

    Raises:
        BadLedger: no such file, or not what ``migrate`` writes.
    """
    try:
        ledger = msgspec.json.decode(Path(file).read_bytes(), type=_Ledger)
    except OSError as problem:
        raise BadLedger(f"{file}: {problem.strerror or problem}") from problem
    except msgspec.DecodeError as problem:
        raise BadLedger(
            f"{file} is no ledger of `fsdp2lint migrate -f json`: {problem}"
        ) from problem
    entries = [
        Entry(
            o.filename,
            o.location.row,
            o.symbol,
            o.fate,
            "; to do: ".join(filter(None, (o.why, o.todo))),
            o.cell,
        )
        for o in ledger.occurrences
    ]
    manual = sum(entry.outcome == "manual" for entry in entries)
    said = f"{len(entries)} occurrences of FSDP1 are accounted for, {manual} of them left for manual migration"
    return entries, rung(1, ledger.complete and not manual, said)
