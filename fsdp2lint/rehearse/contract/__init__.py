"""The contract of ``fully_shard``, checked while a script runs: one check a file.

A check listens to optimizer steps and to the calls that matter to it, says at once what one rank alone
can know, and notes facts for what only shows when ranks are compared. Modules here import PyTorch only
inside functions, so that the comparison runs in a process without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fsdp2lint.rehearse.contract import collectives, meetings, step_counts
from fsdp2lint.rehearse.contract.async_saves import AsyncSaves
from fsdp2lint.rehearse.contract.buffers import Buffers
from fsdp2lint.rehearse.contract.check import Check
from fsdp2lint.rehearse.contract.direct_calls import DirectCalls
from fsdp2lint.rehearse.contract.empty_memory import EmptyMemory
from fsdp2lint.rehearse.contract.gradient_sync import GradientSync
from fsdp2lint.rehearse.contract.initial_values import InitialValues
from fsdp2lint.rehearse.contract.learning_rates import LearningRates
from fsdp2lint.rehearse.contract.meetings import Meetings
from fsdp2lint.rehearse.contract.optimizer_parameters import OptimizerParameters
from fsdp2lint.rehearse.contract.partial_values import PartialValues
from fsdp2lint.rehearse.contract.replicas import Replicas
from fsdp2lint.rehearse.contract.sharded_pickles import ShardedPickles
from fsdp2lint.rehearse.contract.shared_steps import SharedSteps
from fsdp2lint.rehearse.contract.training import Training
from fsdp2lint.rehearse.outcome import RankReport, Violation

CHECKS: tuple[type[Check], ...] = (
    OptimizerParameters,
    DirectCalls,
    GradientSync,
    Meetings,
    Replicas,
    Buffers,
    InitialValues,
    EmptyMemory,
    ShardedPickles,
    PartialValues,
    SharedSteps,
    AsyncSaves,
    LearningRates,
    Training,
)


def judge(ranks: Sequence[RankReport]) -> list[Violation]:
    """Everything that broke the contract: what ranks said, and what comparing them shows."""
    found: dict[tuple[object, ...], Violation] = {}
    for violation in _all(ranks):
        found.setdefault((violation.code, violation.at), violation)
    return list(found.values())


def _all(ranks: Sequence[RankReport]) -> Iterator[Violation]:
    waits = list(collectives.across(ranks))
    yield from waits or meetings.across(ranks)
    yield from step_counts.across(ranks)
    for rank in ranks:
        yield from rank.violations
    for check in CHECKS:
        if facts := _facts(check, ranks):
            yield from check.across(facts)


def doubts(ranks: Sequence[RankReport]) -> list[Violation]:
    """What may be meant so, and is worth a look."""
    return [
        doubt
        for check in CHECKS
        if (facts := _facts(check, ranks))
        for doubt in check.doubts(facts)
    ]


def _facts(check: type[Check], ranks: Sequence[RankReport]) -> list[object]:
    """What every rank noted for a check; nothing unless all did."""
    facts: list[object] = [rank.facts.get(check.__name__) for rank in ranks]
    return facts if all(fact is not None for fact in facts) else []
