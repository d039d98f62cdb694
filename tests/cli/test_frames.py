"""Where the interpreter runs, the frames of its functions cost no memory of the system's."""

from __future__ import annotations

import sys

import pytest

from fsdp2lint.system.frames import roomy

CALLS = 500


def faults_at(depth: int) -> int:
    """How many pages the system had to give for calls from a function that is called so deep."""
    import resource

    if depth:
        return faults_at(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def leaf() -> None:
    """A call."""


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_no_depth_asks_the_system_for_memory_with_every_call() -> None:
    most = roomy(lambda: max(map(faults_at, range(400))))()
    assert most < CALLS // 2


def test_what_is_done_there_is_given_and_raised() -> None:
    assert roomy(divmod)(7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        roomy(divmod)(7, 0)
