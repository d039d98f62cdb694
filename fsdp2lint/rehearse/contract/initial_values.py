"""All ranks shard the same initial weights, or load and broadcast them afterwards (FSDP232).

Each rank keeps its own part of what it built, so ranks that draw different numbers make one model out
of pieces of several initialisations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.whole import untouched
from fsdp2lint.rehearse.outcome import Spot, Violation


class InitialValues(Check):
    """Compares parameters as they were sharded; those that were written to before the first step are left out."""

    def install(self) -> None:
        """Nothing is known before the first step."""
        self._facts: dict[str, Any] | None = None

    def before_step(self, optimizer: Any, at: Spot | None) -> None:
        """Before the first step: keep what training begins with."""
        if self._facts is None:
            self._facts = {
                whole.key: {
                    "total": whole.before,
                    "at": (whole.at.file, whole.at.line) if whole.at else None,
                    "name": whole.name,
                }
                for whole in untouched(self.watch.whole)
            }

    def facts(self) -> Any:
        """By number of the shard and of the parameter in it."""
        return {} if self.watch.loaded() else self._facts or {}

    @staticmethod
    def across(ranks: list[Any]) -> Iterator[Violation]:
        """Parameters that were not the same when they were sharded."""
        differing = [
            fact
            for key, fact in ranks[0].items()
            if all(key in rank for rank in ranks)
            and len({rank[key]["total"] for rank in ranks}) > 1
        ]
        if differing:
            first = differing[0]
            more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
            message = (
                f"ranks shard different values of `{first['name']}`{more} here, and nothing is "
                "loaded or broadcast afterwards: the model mixes parts of several initialisations"
            )
            yield Violation("FSDP232", message, Spot(*first["at"]) if first["at"] else None)
