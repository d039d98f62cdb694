"""How often each rule was right on public code, and how many planted mistakes it found: ``benchmarks/`` measures both."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

ENOUGH = 20
"""So many judged findings make a percentage; of fewer the page gives the count alone."""


class Accuracy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was seen of one rule: the judged findings, how many were right, in how many repositories."""

    judged: int
    right: int
    repositories: int

    @property
    def precision(self) -> float:
        """The share of the findings that were right."""
        return self.right / self.judged


class Recall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mistakes for one rule that were planted in public programs, and how many of them were found."""

    planted: int
    found: int
    programs: int


@cache
def recalled() -> dict[str, Recall]:
    """The numbers of all rules for which mistakes were planted (``benchmarks/mutation``), by code."""
    data = Path(__file__).with_name("recall.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, Recall])


def recall_sentence(seen: Recall | None) -> str:
    """The numbers of one rule in words."""
    if seen is None:
        return "No mistake of this kind was planted in public programs."
    places = f"{seen.programs} public program{'s' * (seen.programs != 1)}"
    mistakes = f"mistake{'s' * (seen.planted != 1)}"
    were = "were" if seen.found != 1 else "was"
    planted = "were" if seen.planted != 1 else "was"
    return f"{seen.found} of {seen.planted} {mistakes} of this kind that {planted} planted in {places} {were} found."


@cache
def measured() -> dict[str, Accuracy]:
    """The numbers of all rules that were seen on public code, by code."""
    data = Path(__file__).with_name("accuracy.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, Accuracy])


def sentence(code: str) -> str:
    """The numbers of one rule in words."""
    seen = measured().get(code)
    if seen is None:
        return "No finding on public code was judged yet."
    findings = f"{seen.judged} finding{'s' * (seen.judged != 1)}"
    places = f"{seen.repositories} public repositor{'ies' if seen.repositories != 1 else 'y'}"
    if seen.judged < ENOUGH:
        return f"{seen.right} of {findings} in {places} were right, judged by hand."
    return (
        f"Precision {seen.precision:.0%}: {seen.right} of {findings} in {places}, judged by hand."
    )
