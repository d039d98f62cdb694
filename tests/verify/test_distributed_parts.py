"""FSDP1 on CPU ranks, and gathering: programs that assert what they see, run by the ranks of `rehearse`."""

from __future__ import annotations

import pytest

from fsdp2lint.verify.outcome import RankReport

from .scenes import ROOT, rehearsed

NAMES = ("fsdp1_states", "fsdp1_broadcast", "gathered")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RankReport]]:
    """Every program's reports."""
    scripts = [ROOT / "fixtures" / "verify" / f"{name}.py" for name in NAMES]
    results = rehearsed(scripts, tmp_path_factory.mktemp("scenes"), limit=200.0)
    return dict(zip(NAMES, (ranks for ranks, _ in results), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_what_it_asserts_holds(told: dict[str, list[RankReport]], name: str) -> None:
    assert [(rank.how, rank.error) for rank in told[name]] == [("ended", ""), ("ended", "")]
