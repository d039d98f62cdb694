"""Every rank makes the same optimizer steps (FSDP414).

A step is each rank's own affair: one that is left out on a rank stops no other, and its shard of the parameters stays behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from fsdp2lint.rehearse.outcome import RankReport, Violation


def across(ranks: Sequence[RankReport]) -> Iterator[Violation]:
    """The rank that made fewer steps than one that is done, where no rank failed of itself."""
    done = [rank for rank in ranks if rank.done]
    if not done or any(not rank.done and rank.how not in ("lost", "hung") for rank in ranks):
        return
    most = max(done, key=lambda rank: len(rank.steps))
    fewest = min(ranks, key=lambda rank: len(rank.steps))
    if len(most.steps) == len(fewest.steps):
        return
    backwards = [
        list(accumulate(len(step.losses) for step in rank.steps)) for rank in (most, fewest)
    ]
    missing = next(n for n, one in enumerate(backwards[0]) if backwards[1][n : n + 1] != [one])
    message = (
        f"rank {fewest.rank} leaves out step {missing + 1} that rank {most.rank} makes here "
        f"({len(fewest.steps)} steps and {len(most.steps)}): its shard of the parameters stays as it was"
    )
    yield Violation("FSDP414", message, most.steps[missing].lines.get("step"))
