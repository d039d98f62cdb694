"""Fields of settings that FSDP2 has no use for stay where a command line or a file may name them."""

from __future__ import annotations

import pytest

from tests.migrate.test_ledger import made

PROGRAM = """\
import sys
from dataclasses import dataclass, field, replace

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{imports}


@dataclass
class Config:
    lr: float = 1e-3
    limit_all_gathers: bool = True
{classes}


def options():
    return dict(one.split("=") for one in sys.argv[1:])

{reads}
model = FSDP(nn.Linear(8, 8), limit_all_gathers=config.limit_all_gathers)
"""
PARSER = "from transformers import HfArgumentParser"
WHOLE = """

@dataclass
class Whole:
    inner: Config = field(default_factory=Config)
"""

DERIVED = WHOLE.replace("class Whole:", "class Whole(Base):")


def after(reads: str, imports: str = "", classes: str = "") -> str:
    """The program, which gets its settings like this, after its migration."""
    done = made(PROGRAM.format(reads=reads, imports=imports, classes=classes))
    assert "fully_shard(nn.Linear(8, 8))" in done.after[0].text
    return done.after[0].text


@pytest.mark.parametrize(
    ("reads", "imports", "classes"),
    [
        ("config = Whole.load(sys.argv[1]).inner", "from base import Base", DERIVED),
        ("config = replace(Config(), **options())", "", ""),
        ("config = Config(**options())", "", ""),
        ("(config,) = HfArgumentParser(Config).parse_args_into_dataclasses()", PARSER, ""),
        ("(config,) = HfArgumentParser((Config,)).parse_args_into_dataclasses()", PARSER, ""),
        (
            "config = Whole.load(sys.argv[1]).inner",
            "",
            "\n\nclass Base:\n    @classmethod\n    def load(cls, path):\n        ...\n" + DERIVED,
        ),
        ("config = HfArgumentParser(Whole).parse()[0].inner", PARSER, WHOLE),
    ],
)
def test_a_field_that_may_be_named_stays(reads: str, imports: str, classes: str) -> None:
    text = after(reads, imports, classes)
    assert "    limit_all_gathers: bool = True\n" in text


@pytest.mark.parametrize(
    ("reads", "classes"),
    [
        ("config = Config()", ""),
        ("config = Config(lr=0.1)", ""),
        ("config = Whole().inner", WHOLE),
        ("config = Whole().inner", "\n\nclass Base:\n    pass\n" + DERIVED),
        ("config = Config()\nassert isinstance(config, Config)", ""),
    ],
)
def test_a_field_that_nothing_can_name_goes(reads: str, classes: str) -> None:
    assert "limit_all_gathers" not in after(reads, classes=classes)


def test_what_describes_a_field_goes_with_it() -> None:
    text = after("config = Config()", classes='    """Wait for gathers."""\n    steps: int = 8')
    assert "Wait for gathers" not in text
    assert "    lr: float = 1e-3\n    steps: int = 8\n" in text
