"""The contract of ``fully_shard``, checked while a script runs: one check a file.

A check listens to optimizer steps and to the calls that matter to it, says at once what one rank alone
can know, and notes facts for what only shows when ranks are compared. Modules here import PyTorch only
inside functions, so that the comparison runs in a process without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fsdp2lint.verify.contract.async_saves import AsyncSaves
from fsdp2lint.verify.contract.check import Check
from fsdp2lint.verify.contract.collectives import across
from fsdp2lint.verify.contract.gradient_sync import GradientSync
from fsdp2lint.verify.contract.initial_values import InitialValues
from fsdp2lint.verify.contract.optimizer_parameters import OptimizerParameters
from fsdp2lint.verify.contract.partial_values import PartialValues
from fsdp2lint.verify.contract.replicas import Replicas
from fsdp2lint.verify.contract.sharded_pickles import ShardedPickles
from fsdp2lint.verify.contract.shared_steps import SharedSteps
from fsdp2lint.verify.contract.training import Training, untrained
from fsdp2lint.verify.outcome import RankReport, Violation

CHECKS: tuple[type[Check], ...] = (
    OptimizerParameters,
    GradientSync,
    Replicas,
    InitialValues,
    ShardedPickles,
    PartialValues,
    SharedSteps,
    AsyncSaves,
    Training,
)


def judge(ranks: Sequence[RankReport]) -> list[Violation]:
    """Everything that broke the contract: what ranks said, and what comparing them shows."""
    found: dict[tuple[object, ...], Violation] = {}
    for violation in _all(ranks):
        found.setdefault((violation.code, violation.at), violation)
    return list(found.values())


def _all(ranks: Sequence[RankReport]) -> Iterator[Violation]:
    yield from across(ranks)
    for rank in ranks:
        yield from rank.violations
    for check in CHECKS:
        facts: Iterable[object] = [rank.facts.get(check.__name__) for rank in ranks]
        if all(fact is not None for fact in facts):
            yield from check.across(list(facts))


def notes(ranks: Sequence[RankReport]) -> list[str]:
    """What is worth a look without being a break of the contract."""
    facts = [rank.facts.get(Training.__name__) for rank in ranks]
    if not facts or any(fact is None for fact in facts):
        return []
    return list(untrained(facts))
