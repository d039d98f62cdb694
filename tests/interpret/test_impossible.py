"""What no run comes to is not reported, also where only trying both sides of a test shows it."""

from __future__ import annotations

import pytest

from fsdp2lint.source.source import Source
from tests.rules.test_rules import findings

TEXT = """
import os
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from settings import args


def on_meta(is_library):
    mode = getattr(args, "meta", "auto")
    if is_library:
        return False
    if mode == "off":
        return False
    if mode == "on":
        return True
    use = args.size >= float(os.environ.get("LEAST", "6e9"))
    return use


def build():
    is_library = args.name and "/" in args.name
    meta = on_meta(is_library)
    if is_library:
        model = nn.Linear(8, 8)
    else:
        if meta:
            with torch.device("meta"):
                model = nn.Linear(8, 8)
        else:
            model = nn.Linear(8, 8)
    if {test}:
        model.to("cuda")
    fully_shard(model)
    return model


build()
"""


@pytest.mark.parametrize(("test", "reported"), [("not meta", False), ("not args.cpu", True)])
def test_a_model_that_is_moved_where_it_was_not_built_on_meta(test: str, reported: bool) -> None:
    source = Source("train.py", TEXT.format(test=test))
    assert ("FSDP250" in {rule.code for rule, _ in findings([source])}) is reported
