"""Loops over the share of a rank, in which the ranks meet (FSDP412), form by form."""

from __future__ import annotations

from textwrap import indent

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings, named

HEAD = """\
import math

import torch
import torch.distributed as dist
from elsewhere import config, load
from torch import nn
from torch.distributed.fsdp import fully_shard
from tqdm import tqdm

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
rank, world = dist.get_rank(), dist.get_world_size()
questions = load("questions")


def answer(number):
    return model(torch.ones(1, 8))


"""
UNEVEN = (
    "for number in range(rank, len(questions), world):\n    answer(number)",
    "mine = questions[rank::world]\nfor number in range(len(mine)):\n    answer(number)",
    "for number, one in enumerate(questions[rank::world]):\n    answer(number)",
    "for one in tqdm(questions[rank::world]):\n    if config.ask:\n        answer(one)",
)
EVEN = (
    "for number in range(rank, len(questions) // world * world, world):\n    answer(number)",
    "for number in range(math.ceil(len(questions) / world)):\n    answer(number)",
    "for one in tqdm((questions + [None] * (-len(questions) % world))[rank::world]):\n    answer(one)",
    "assert len(questions) % world == 0\nfor number in range(rank, len(questions), world):\n    answer(number)",
    "for number in range(rank, len(questions), world):\n    print(number)",
    "for number in range(rank, len(questions)):\n    print(number)\nanswer(0)",
)


def waits(text: str, *, inside: bool = False) -> bool:
    """Whether some ranks are found to wait for others that have fewer elements."""
    script = f"def run():\n{indent(text, '    ')}\n\n\nrun()\n" if inside else f"{text}\n"
    found = named(list(findings([Source("train.py", HEAD + script)])))
    return "FSDP412" in {one.code for one in found}


@pytest.mark.parametrize("text", UNEVEN)
def test_shares_need_not_be_equal(text: str) -> None:
    assert waits(text)
    assert waits(text, inside=True)


@pytest.mark.parametrize("text", EVEN)
def test_what_is_equal_on_all_ranks_is_no_share(text: str) -> None:
    assert not waits(text)
