"""Keywords that a settings object gives, of which only the run knows the values: the migrated program does the same."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.migrated import PROJECTS, migrate_folder, written

TOLD = PROJECTS / "told_by_a_plan"


def test_nothing_is_left_to_a_person() -> None:
    made = migrate_folder(TOLD)
    assert made.failures == []
    assert made.ledger.complete
    assert made.ledger.manual == []
    assert "plan.same_start" in made.changed[0][1].text


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("torch") is None, reason="running needs torch")
def test_it_does_the_same(tmp_path: Path) -> None:
    from fsdp2lint.prove.compare import Options, verify
    from fsdp2lint.prove.places import find

    after = written(migrate_folder(TOLD), TOLD, tmp_path)
    before = find(str(TOLD), entry="train.py")
    done = verify(before, find(str(after), entry="train.py"), Options((), 2, rtol=0.0))
    assert done.fault is None
    assert [one.message for one in done.differences] == []
