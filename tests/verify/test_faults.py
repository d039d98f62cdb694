"""Faults of a run are named, each planted alone in a correct program, which is silent."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from fsdp2lint.rehearse.contract import judge
from fsdp2lint.rehearse.outcome import RankReport, Step
from fsdp2lint.rehearse.warm import Forking

from .faulty import FAULTS, PROGRAM, changed, is_named, report

needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="ranks are forked under Linux")


@pytest.fixture(scope="module")
def forking() -> Iterator[Forking]:
    started = Forking()
    yield started
    started.end()


@needs_proc
@pytest.mark.ranks
def test_the_program_as_it_is_breaks_nothing(forking: Forking) -> None:
    said, _ = report(forking, PROGRAM)
    assert said.rstrip().endswith("Nothing broke the contract."), said
    assert "warning[" not in said


@needs_proc
@pytest.mark.ranks
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(forking: Forking, name: str) -> None:
    said, _ = report(forking, changed(name), FAULTS[name].stays)
    assert is_named(name, said), said


def test_a_step_that_a_rank_leaves_out_has_its_number() -> None:
    def rank(number: int, how: str, *backwards: int) -> RankReport:
        steps = [Step([1.0] * count) for count in backwards]
        return RankReport(number, how, steps=steps)  # type: ignore[arg-type]

    def said(*ranks: RankReport) -> list[str]:
        return [one.message for one in judge(ranks) if one.code == "FSDP414"]

    first = rank(0, "ended", 1, 1, 1)
    assert said(first, rank(1, "ended", 1, 1, 1)) == []
    (message,) = said(first, rank(1, "ended", 1, 2))
    assert message.startswith("rank 1 leaves out step 2 that rank 0 makes here (2 steps and 3)")
    assert said(first, rank(1, "raised", 1)) == []
    assert said(rank(0, "lost", 1, 1), rank(1, "lost", 1)) == []
