"""Turns a run into symptoms and holds them against what a fixture claims.

A *symptom* is damage; all of it must be claimed and all claims of it must be seen. A *fact* is
compared only where a fixture claims it. `README.md` lists both vocabularies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .results import Left, RankResult, Run

_SAID = re.compile(r'^(?P<head>(?:rank \d+ )?(?:raises|hangs at|dies at)) "(?P<said>.*)"$')
_NOT_SHOWN = re.compile(r"^not shown on CPU -- .+")


@dataclass(frozen=True)
class Symptom:
    """Damage in the words of the headers; `said` is the part that a claim may shorten."""

    head: str
    said: str = ""

    def __str__(self) -> str:
        return f'{self.head} "{self.said}"' if self.said else self.head

    def shows(self, claimed: Symptom) -> bool:
        """Whether this observed symptom is what a claim describes."""
        return self.head == claimed.head and claimed.said in self.said


def complaints(run: Run, claims: tuple[str, ...]) -> list[str]:
    """What is wrong between the claims and the run; empty when they agree."""
    symptoms = list(observed(run))
    wanted: list[Symptom] = []
    found: list[str] = []
    for claim in claims:
        verdict = _fact(run, claim)
        if verdict is None:
            wanted += _claimed(claim, len(run.ranks))
        elif not verdict:
            found.append(f"not seen: {claim}")
    for want in wanted:
        shown = next((symptom for symptom in symptoms if symptom.shows(want)), None)
        if shown is None:
            found.append(f"not seen: {want}")
        else:
            symptoms.remove(shown)
    return found + [f"not claimed: {symptom}" for symptom in symptoms]


def observed(run: Run) -> Iterator[Symptom]:
    """All damage that a run shows."""
    for rank in run.ranks:
        if rank.outcome == "raised":
            yield Symptom(f"rank {rank.rank} raises", rank.error)
        elif rank.outcome != "ended":
            verb = "hangs at" if rank.outcome == "hung" else "dies at"
            yield Symptom(f"rank {rank.rank} {verb}", rank.where or "?")
    if all(rank.outcome == "ended" for rank in run.ranks):
        yield from _untrained(run.ranks)
    stacked = {kind: n for rank in run.ranks for kind, n in rank.seen.stacked.items()}
    for kind, number in stacked.items():
        if number > FEW:
            yield Symptom(f"gathers {number} {kind} at once")
    yield from _damaged(run.left)


FEW = 2
"""Of two blocks one is gathered while the other computes: both are whole at once all the same."""


def _untrained(ranks: list[RankResult]) -> Iterator[Symptom]:
    names = sorted({name for rank in ranks for name in rank.seen.tensors})
    seen = {name: [rank.seen.tensors.get(name) for rank in ranks] for name in names}
    trained = sum(any(one and one.trained for one in views) for views in seen.values())
    if trained < len(names):
        yield Symptom(f"trains {trained} of {len(names)} tensors")
    drifting = sum(
        len({one.digest for one in views if one and not one.sharded}) > 1 for views in seen.values()
    )
    if drifting:
        yield Symptom(f"ranks drift in {drifting} tensors")


def _damaged(left: list[Left]) -> Iterator[Symptom]:
    for item in left:
        if item.error:
            yield Symptom(f'{item.kind} "{item.name}" cannot be read')
        elif item.share != 1:
            yield Symptom(f'{item.kind} "{item.name}" holds {item.share} of its tensors')
        elif item.mixed:
            yield Symptom(f'{item.kind} "{item.name}" mixes two saves')


def _claimed(claim: str, nproc: int) -> list[Symptom]:
    said = _SAID.match(claim)
    if said is None:
        return [Symptom(claim)]
    if said["head"].startswith("rank "):
        return [Symptom(said["head"], said["said"])]
    return [Symptom(f"rank {rank} {said['head']}", said["said"]) for rank in range(nproc)]


def _fact(run: Run, claim: str) -> bool | None:
    """Whether a claimed fact holds; None when the claim is no fact but a symptom."""
    if _NOT_SHOWN.match(claim):
        return True
    for pattern, holds in _FACTS:
        told = pattern.match(claim)
        if told:
            return holds(run, *told.groups())
    return None


def _prints(run: Run, rank: str | None, text: str) -> bool:
    ranks = [one for one in run.ranks if rank is None or one.rank == int(rank)]
    return any(text in one.stdout for one in ranks)


def _warns(run: Run, text: str) -> bool:
    return any(text in rank.stderr for rank in run.ranks)


def _reduces(run: Run, times: str) -> bool:
    return all(
        rank.seen.reductions == int(times) * rank.seen.steps * rank.seen.units > 0
        for rank in run.ranks
    )


def _gathers(run: Run, times: str) -> bool:
    return all(rank.seen.gathers == int(times) * rank.seen.steps > 0 for rank in run.ranks)


def _operates(run: Run, number: str) -> bool:
    return all(rank.seen.operations == int(number) * rank.seen.steps > 0 for rank in run.ranks)


def _reads(run: Run, number: str) -> bool:
    return max(rank.seen.reads for rank in run.ranks) == int(number)


def _whole(run: Run, number: str) -> bool:
    return all(rank.seen.whole == int(number) for rank in run.ranks)


def _holds(run: Run, number: str) -> bool:
    return all(rank.seen.held == int(number) for rank in run.ranks)


def _waits(run: Run, number: str) -> bool:
    return max(rank.seen.waits for rank in run.ranks) == int(number)


def _ahead(run: Run, number: str) -> bool:
    return all(
        rank.seen.ahead == int(number) * rank.seen.steps and rank.seen.steps > 0
        for rank in run.ranks
    )


def _stages(run: Run, number: str) -> bool:
    return all(rank.seen.staged == int(number) for rank in run.ranks)


def _reduces_in(run: Run, dtype: str) -> bool:
    return all(dtype in rank.seen.reduced_in for rank in run.ranks)


def _write(run: Run, number: str, name: str) -> bool:
    return sum(name in rank.seen.written for rank in run.ranks) == int(number)


def _read(run: Run, number: str, name: str) -> bool:
    return sum(name in rank.seen.read for rank in run.ranks) == int(number)


def _lacks(run: Run, name: str, prefix: str) -> bool:
    items = [item for item in run.left if item.name == name and not item.error]
    return bool(items) and not any(key.startswith(prefix) for key in items[0].keys)


def _leaves(run: Run, name: str) -> bool:
    return any(item.name == name and not item.error for item in run.left)


_FACTS: tuple[tuple[re.Pattern[str], Callable[..., bool]], ...] = (
    (re.compile(r'^(?:rank (\d+) )?prints "(.+)"$'), _prints),
    (re.compile(r'^warns "(.+)"$'), _warns),
    (re.compile(r"^reduces gradients (\d+) times? per step$"), _reduces),
    (re.compile(r"^reduces gradients in (\w+)$"), _reduces_in),
    (re.compile(r"^gathers parameters (\d+) times? per step$"), _gathers),
    (re.compile(r"^gathers (\d+) whole tensors?$"), _whole),
    (re.compile(r"^holds (\d+) elements at once$"), _holds),
    (re.compile(r"^runs (\d+) operations? in each step of an optimizer$"), _operates),
    (re.compile(r"^reads (\d+) numbers? out of tensors$"), _reads),
    (re.compile(r"^gathers (\d+) units? ahead of their forward per step$"), _ahead),
    (re.compile(r"^copies (\d+) storages? into new memory$"), _stages),
    (re.compile(r"^waits for (\d+) writes? of a checkpoint between steps$"), _waits),
    (re.compile(r'^(\d+) ranks? writes? "(.+)"$'), _write),
    (re.compile(r'^(\d+) ranks? reads? "(.+)" whole$'), _read),
    (re.compile(r'^(?:file|checkpoint) "(.+)" lacks "(.+)"$'), _lacks),
    (re.compile(r'^leaves "(.+)"$'), _leaves),
)
