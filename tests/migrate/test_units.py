"""A model is migrated whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import Migration, migrate
from fsdp2lint.source.source import Source

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

"""

HALF = (
    HEAD
    + """\

def wrap(model, keywords):
    return FSDP(model, *keywords)


def train(model, optimizer):
    model(torch.randn(2, 8)).sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()


def main(keywords):
    model = wrap(nn.Linear(8, 8), keywords)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))


main(input())
"""
)

WHOLE = (
    HEAD
    + """\

def main():
    model = FSDP(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 8)).sum().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()


main()
"""
)

SHARED = (
    HEAD
    + """\
from half import train


def main():
    model = FSDP(nn.Linear(8, 8))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))


main()
"""
)


def made(folder: Path, **texts: str) -> Migration:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    sources = [Source(str(folder / f"{name}.py"), text) for name, text in texts.items()]
    done = migrate(sources, knowledge.codemods(), [folder])
    assert done.failures == []
    return done


def after(done: Migration, name: str) -> str:
    return next(s.text for s in done.after if s.path.endswith(f"/{name}.py"))


def test_a_model_whose_constructor_stays_keeps_its_clipping(tmp_path: Path) -> None:
    done = made(tmp_path, half=HALF)
    text = after(done, "half")
    assert "    model.clip_grad_norm_(1.0)\n" in text
    assert text.count("TODO(fsdp2lint)") == 1
    clip = next(e for e in done.ledger.entries if e.symbol == "clip_grad_norm_")
    assert clip.fate == "manual"
    assert f"half.py:{HALF.count(chr(10), 0, HALF.index('return FSDP')) + 1} cannot be" in clip.why


def test_another_program_beside_it_is_migrated(tmp_path: Path) -> None:
    done = made(tmp_path, half=HALF, whole=WHOLE)
    assert "model.clip_grad_norm_(1.0)" in after(done, "half")
    assert "model = fully_shard(nn.Linear(8, 8))" in after(done, "whole")
    assert "nn.utils.clip_grad_norm_(model.parameters(), 1.0)" in after(done, "whole")


def test_models_that_share_a_function_stay_together(tmp_path: Path) -> None:
    done = made(tmp_path, half=HALF, shared=SHARED)
    assert after(done, "shared") == SHARED


@pytest.mark.parametrize("name", ["half", "whole"])
def test_migrating_again_changes_nothing(tmp_path: Path, name: str) -> None:
    first = made(tmp_path, half=HALF, whole=WHOLE)
    texts = {one: after(first, one) for one in ("half", "whole")}
    assert after(made(tmp_path, **texts), name) == texts[name]


def test_a_wrapper_made_in_another_file_is_called_without_a_comment(tmp_path: Path) -> None:
    making = (
        "from functools import partial\n\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def wrapper():\n    return partial(FSDP, use_orig_params=True)\n"
    )
    using = (
        "from torch import nn\n\nfrom making import wrapper\n\n"
        "wrap = wrapper()\nparts = nn.ModuleDict({'a': nn.Linear(4, 4)})\n"
        "for name, part in parts.items():\n    parts[name] = wrap(part)\n"
    )
    done = made(tmp_path, making=making, using=using)
    assert "fully_shard" in after(done, "making")
    assert after(done, "using") == using
    assert done.ledger.manual == []


LOCAL = (
    HEAD
    + """\
from torch.distributed.fsdp import StateDictType


def save(model):
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        torch.save(model.state_dict(), "model.pt")


model = FSDP(nn.Linear(8, 8))
model(torch.randn(2, 8)).sum().backward()
model.clip_grad_norm_(1.0)
save(model)
"""
)


def test_a_model_with_local_state_dicts_stays_whole(tmp_path: Path) -> None:
    """A context of FSDP1 around a model of FSDP2 raises when it is left."""
    text = after(made(tmp_path, train=LOCAL), "train")
    assert "fully_shard" not in text
    assert "model.clip_grad_norm_(1.0)" in text


COPIED = """\
from torch.distributed.fsdp._common_utils import _FSDPState, clean_tensor_name
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.fsdp._runtime_utils import _lazy_init
from torch.distributed.fsdp.api import ShardingStrategy


def names(state: _FSDPState, handle: FlatParamHandle, found):
    if state.sharding_strategy == ShardingStrategy.NO_SHARD:
        _lazy_init(state, handle)
    return [clean_tensor_name(one) for one in found]
"""


def test_a_copy_of_a_module_of_fsdp1_is_not_rewritten(tmp_path: Path) -> None:
    done = made(tmp_path, train=WHOLE, _optim_utils=COPIED)
    assert after(done, "_optim_utils") == COPIED
    assert "fully_shard" in after(done, "train")


def test_the_rank_of_a_wrapper_is_accounted_for_once(tmp_path: Path) -> None:
    """Where FSDP1 shards over all ranks, its own `rank` is that of the program."""
    asked = "\nmodel = FSDP(nn.Linear(8, 8))\nprint(model.rank, model.world_size)\n"
    done = made(tmp_path, train=HEAD + asked)
    assert "get_rank()" in after(done, "train")
    assert done.ledger.manual == []


def test_what_follows_from_a_model_that_stays_gets_no_comment_of_its_own(tmp_path: Path) -> None:
    before = HALF.replace(
        "    optimizer.step()\n",
        "    optimizer.step()\n"
        "    print(sum(p.numel() for p in model.parameters()))\n"
        "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "        torch.save(model.state_dict(), 'model.pt')\n",
    ).replace("as FSDP\n", "as FSDP, StateDictType\n")
    done = made(tmp_path, half=before)
    assert done.after[0].text.count("TODO(fsdp2lint)") == 1
    assert not any("counts whole parameters" in entry.why for entry in done.ledger.entries)
    kinds = [entry for entry in done.ledger.entries if "state_dict_type" in entry.symbol]
    assert [(e.fate, e.todo) for e in kinds] == [("manual", "")]
    assert all("stays" in e.why or "kept as FSDP1" in e.why for e in kinds)
