"""The comments that a migration leaves in the text, and what later runs make of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.evidence.client import run_script
from tests.migrate.test_ledger import HEAD, made


def test_what_was_left_to_a_person_stays_theirs_until_the_comment_goes() -> None:
    comment = "# TODO(fsdp2lint): gather with full_tensor()"
    text = HEAD + (
        "model = FSDP(nn.Linear(8, 8))\n"
        f"{comment}\n"
        "norm = model.clip_grad_norm_(1.0)\n"
        "model.clip_grad_norm_(1.0)\n"
    )
    done = made(text)
    after = done.after[0].text
    assert f"{comment}\nnorm = model.clip_grad_norm_(1.0)\nnn.utils.clip_grad_norm_(" in after
    assert after.count("TODO(fsdp2lint)") == 1
    (entry,) = done.ledger.manual
    assert (entry.symbol, entry.why) == (
        "clip_grad_norm_",
        "an earlier run left this for manual migration",
    )
    assert "model.clip_grad_norm_" not in made(text.replace(comment, "")).after[0].text


def test_values_of_migrated_code_are_no_work_because_of_other_code() -> None:
    """A wrapper that is left to a person says nothing of the functions that call ``fully_shard`` by now."""
    text = f"""{HEAD}from torch.distributed.fsdp import MixedPrecision, ShardingStrategy


def migrated(args):
    strategy = {{
        "full": ShardingStrategy.FULL_SHARD,
        "gradients": ShardingStrategy.SHARD_GRAD_OP,
    }}[args.shards]
    return FSDP(nn.Linear(8, 8), sharding_strategy=strategy)


def left(args):
    precision = MixedPrecision(keep_low_precision_grads=True)
    return FSDP(nn.Linear(8, 8), mixed_precision=precision)
"""
    migrated, _, left = made(text).after[0].text.partition("def left")
    assert "TODO" not in migrated
    assert "TODO" in left


def test_statements_that_lie_together_share_a_comment() -> None:
    text = f"""{HEAD}import torch.distributed.fsdp._traversal_utils as traversal


def update(averaged, model):
    old = traversal._get_fsdp_handles(averaged)
    new = traversal._get_fsdp_handles(model)
    return old, new


update(FSDP(nn.Linear(8, 8)), FSDP(nn.Linear(8, 8)))
"""
    once = made(text)
    assert len([e for e in once.ledger.manual if "_get_fsdp_handles" in e.todo]) == 2
    assert once.after[0].text.count("# TODO(fsdp2lint): FSDP2 has no `_get_fsdp_handles`") == 1
    assert made(once.after[0].text).after[0].text == once.after[0].text


def test_lines_that_a_carriage_return_ends_are_lines() -> None:
    calls = "".join(
        f"\n\ndef f{n}():\n    return traversal._get_fsdp_handles(model)\n" for n in "ab"
    )
    text = f"{HEAD}import torch.distributed.fsdp._traversal_utils as traversal\n{calls}\n\nmodel = nn.Linear(8, 8)"
    wanted = made(text).after[0].text
    assert wanted.count("# TODO(fsdp2lint)") == 2
    found = made(text.replace("\n", "\r"))
    assert found.after[0].text == wanted.replace("\n", "\r")
    again = made(found.after[0].text)
    assert again.changed == []
    assert [todo.line for todo in again.todos] == [todo.line for todo in made(wanted).todos]


def test_they_share_it_below_a_long_comment_too() -> None:
    remark = "\n".join(f"    # what was seen in run {number}" for number in range(12))
    text = f"""{HEAD}import torch.distributed.fsdp._traversal_utils as traversal


def update(averaged, model):
{remark}
    old = traversal._get_fsdp_handles(averaged)
    new = traversal._get_fsdp_handles(model)
    return old, new


update(FSDP(nn.Linear(8, 8)), FSDP(nn.Linear(8, 8)))
"""
    once = made(text)
    assert once.after[0].text.count("# TODO(fsdp2lint): FSDP2 has no `_get_fsdp_handles`") == 1
    assert made(once.after[0].text).after[0].text == once.after[0].text


@pytest.mark.ranks
@pytest.mark.skipif(find_spec("torch") is None, reason="runs torch")
def test_a_sharded_model_is_of_its_own_class_as_its_wrapper_was_not(tmp_path: Path) -> None:
    """What the ledger says of tests for the class of a model, on two ranks."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nimport torch.distributed as dist\n"
        "from torch import nn\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard\n"
        "dist.init_process_group('gloo')\n"
        "cpu = torch.device('cpu')\n"
        "made = [FullyShardedDataParallel(nn.Linear(4, 4), device_id=cpu), fully_shard(nn.Linear(4, 4))]\n"
        "print(*(isinstance(one, nn.Linear) for one in made), end='')\n"
        "dist.destroy_process_group()\n"
    )
    said = [rank.stdout.splitlines()[-1] for rank in run_script(script)]  # gloo may speak first
    assert said == ["False True", "False True"]


def test_the_comments_of_a_first_run_bring_no_others() -> None:
    """What a comment keeps from being rewritten changes what else would break a rule; nobody asked for more."""
    text = f"""{HEAD}from torch.nn.parallel import DistributedDataParallel as DDP
import config

model = nn.Linear(8, 8)
model = FSDP(model, use_orig_params=True)
if config.fsdp:
    wrapped = FSDP(model)
else:
    wrapped = DDP(model)

wrap = DDP if config.ddp else FSDP
wrapped = wrap(model)

model = FSDP(model)
"""
    once = made(text).after[0].text
    assert "# TODO(fsdp2lint)" in once
    assert made(once).after[0].text == once


HELD = {
    "the end of a block is cut off": """
def main(loader, accumulate):
    model = FSDP(nn.Linear(8, 8))
    for i, batch in enumerate(loader):
        with model.no_sync() if (i + 1) % accumulate != 0 else nullcontext():
            model(batch).sum().backward()


main([torch.randn(4, 8)], 2)
""",
    "a part is wrapped after the whole": """
other = FSDP(nn.Sequential(FSDP(nn.Linear(8, 8)), nn.ReLU(), FSDP(nn.Linear(8, 8))))
for index, layer in enumerate(other):
    other[index] = FSDP(layer)
""",
}


@pytest.mark.parametrize("name", HELD)
def test_a_model_stays_until_the_comment_goes(name: str) -> None:
    """What kept a model as FSDP1's in the first run keeps it in the second."""
    once = made(f"{HEAD}from contextlib import nullcontext\n{HELD[name]}").after[0].text
    assert "# TODO(fsdp2lint): as FSDP2, " in once
    assert " FSDP(nn." in once
    again = made(once)
    assert again.after[0].text == once
    assert again.ledger.manual
