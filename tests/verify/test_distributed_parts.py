"""FSDP1 on CPU ranks, and gathering: programs that assert what they see, run by the ranks of `rehearse`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .scenes import ROOT, Rehearsed, forking

pytestmark = pytest.mark.ranks

NAMES = ("fsdp1_states", "fsdp1_broadcast", "gathered")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsed]:
    """Every program's reports."""
    with forking() as ranks:
        yield Rehearsed(ranks, tmp_path_factory.mktemp("scenes"), limit=200.0)


@pytest.mark.parametrize("name", NAMES)
def test_what_it_asserts_holds(told: Rehearsed, name: str) -> None:
    ranks, _ = told[ROOT / "fixtures" / "verify" / f"{name}.py"]
    assert [(rank.how, rank.error) for rank in ranks] == [("ended", ""), ("ended", "")]
