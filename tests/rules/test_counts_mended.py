"""What becomes of a count that the ranks added up (FSDP247) when it is mended."""

from __future__ import annotations

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, mended

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)


def count():
"""
COUNT = "sum(p.numel() for p in model.parameters())"
SUM = "dist.all_reduce(total)"


def fixed(*lines: str) -> list[str]:
    """The lines of a function with the fixes of their findings made."""
    text = HEAD + "".join(f"    {line}\n" for line in lines) + "\n\ncount()\n"
    source = Source("train.py", text)
    found = [one for one in findings([source]) if one[0].code == "FSDP247"]
    assert len(found) == 1
    now = mended([source], found)[0].text
    inside = now.partition("def count():\n")[2].partition("\n\n\n")[0]
    return [line.strip() for line in inside.splitlines()]


@pytest.mark.parametrize(
    "made", ["torch.tensor([mine], dtype=torch.long)", "torch.as_tensor(mine)"]
)
def test_a_tensor_of_a_number_that_has_a_name_goes(made: str) -> None:
    lines = fixed(f"mine = {COUNT}", f"total = {made}", SUM, "return total.item() / 1e6")
    assert lines == [f"mine = {COUNT}", "return mine / 1e6"]


def test_the_name_of_another_tensor_becomes_that_of_the_number() -> None:
    lines = fixed(f"total = torch.tensor({COUNT})", SUM, 'return f"{total.item():,}"')
    assert lines == [f"total = {COUNT}", 'return f"{total:,}"']


@pytest.mark.parametrize("read", ["return total", "print(total.item())\n    return total.cuda()"])
def test_a_tensor_that_is_read_as_one_stays(read: str) -> None:
    lines = fixed(f"total = torch.tensor({COUNT})", SUM, read)
    assert lines[0] == f"total = torch.tensor({COUNT})"
    assert "all_reduce" not in "".join(lines)


def test_a_number_that_is_bound_anew_is_not_read_later() -> None:
    lines = fixed(
        f"mine = {COUNT}",
        "total = torch.tensor(mine)",
        SUM,
        "mine = 0",
        "return mine, total.item()",
    )
    assert lines == [f"mine = {COUNT}", "total = mine", "mine = 0", "return mine, total"]
