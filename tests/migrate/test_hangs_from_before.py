"""A hang that the program of FSDP1 has as well does not keep it FSDP1's, whatever its calls are named afterwards."""

from __future__ import annotations

import pytest

from tests.migrate.test_ledger import made

SCRIPT = """\
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

model = FSDP(nn.Linear(8, 8), use_orig_params=True)
if {test}:
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {{"model": model.state_dict()}}
        dist_cp.save_state_dict(state, storage_writer=dist_cp.FileSystemWriter("saved"))
"""


@pytest.mark.parametrize(("test", "rows"), [("dist.get_rank() == 0", 1), ("model.training", 0)])
def test_a_save_that_some_ranks_never_reached(test: str, rows: int) -> None:
    done = made(SCRIPT.format(test=test))
    assert done.ledger.manual == []
    assert "fully_shard" in done.after[0].text
    said = [one.why for one in done.ledger.entries if one.why.startswith("as under FSDP1:")]
    assert len([one for one in said if "the other ranks never come" in one]) == rows
