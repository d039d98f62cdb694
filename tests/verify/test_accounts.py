"""The ledger of a migration as rung 1 of the ladder."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.prove.accounts import BadLedger, read
from tests.support.running import program

SCRIPT = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Linear(8, 8), limit_all_gathers=True)
"""
HOOK = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Linear(8, 8))
model.register_comm_hook(None, print)
"""


def ledger(folder: Path, script: str) -> str:
    (folder / "train.py").write_text(script)
    program("migrate", "-q", "-f", "json=ledger.json", "train.py", cwd=folder)
    return str(folder / "ledger.json")


def test_a_whole_migration_reaches_the_rung(tmp_path: Path) -> None:
    entries, rung = read(ledger(tmp_path, SCRIPT))
    assert (rung.number, rung.state) == (1, "reached")
    dropped = [e for e in entries if e.symbol == "limit_all_gathers"]
    assert [(e.path, e.line, e.outcome) for e in dropped] == [("train.py", 4, "dropped")]


def test_what_is_left_to_a_person_does_not(tmp_path: Path) -> None:
    entries, rung = read(ledger(tmp_path, HOOK))
    assert rung.state == "failed"
    assert "left for manual migration" in rung.why
    (left,) = (e for e in entries if e.outcome == "manual")
    assert (left.symbol, left.line) == ("register_comm_hook", 5)


@pytest.mark.parametrize("text", ["", "[]", '{"occurrences": 3, "complete": true}'])
def test_what_is_no_ledger_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(BadLedger, match="is no ledger"):
        read(str(file))
    with pytest.raises(BadLedger, match="No such file"):
        read(str(tmp_path / "y.json"))
