"""What tests of the cache count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fsdp2lint.check import analysis
from fsdp2lint.check.report import Report

Counter = Callable[[], int]


@pytest.fixture
def analysed(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """How many units were analysed since it was asked the last time."""
    count = 0
    plain = analysis.reports

    def counting(*args: Any) -> list[Report]:
        nonlocal count
        count += 1
        return plain(*args)

    def read() -> int:
        nonlocal count
        now, count = count, 0
        return now

    monkeypatch.setattr(analysis, "reports", counting)
    return read
