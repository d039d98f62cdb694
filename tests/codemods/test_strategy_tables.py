"""Tables of strategies by their names are not kept as tables of names by themselves."""

from __future__ import annotations

import pytest

from fsdp2lint.catalogue import knowledge
from fsdp2lint.migrate.engine import migrate
from fsdp2lint.source.source import Source
from tests.migrate.test_ledger import made

PROGRAM = """\
import argparse
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sharding-strategy", {option})
    args = parser.parse_args()
{lines}
    model = FSDP(nn.Linear(8, 8), sharding_strategy={given}, device_id=torch.cuda.current_device())
    return model


main()
"""
TABLE = """\
    # Sharding strategy
    strategies = {
        "FULL_SHARD": ShardingStrategy.FULL_SHARD,
        "NO_SHARD": ShardingStrategy.NO_SHARD,
    }
"""
OPTION = 'default="FULL_SHARD", choices=["FULL_SHARD", "NO_SHARD"]'
CHOSEN = "    strategy = strategies[args.sharding_strategy]"


def after(option: str = OPTION, lines: str = TABLE + CHOSEN, given: str = "strategy") -> str:
    """The program after its migration."""
    done = made(PROGRAM.format(option=option, lines=lines, given=given))
    assert done.ledger.manual == []
    return done.after[0].text


def test_the_command_line_gives_the_name() -> None:
    text = after()
    assert "strategies" not in text
    assert "    strategy = args.sharding_strategy\n" in text
    assert "**sharding_options(strategy)" in text


def test_the_call_asks_the_table() -> None:
    text = after(lines=TABLE, given="strategies[args.sharding_strategy]")
    assert "strategies" not in text
    assert "sharding_options(args.sharding_strategy)" in text


@pytest.mark.parametrize(
    ("option", "lines"),
    [
        ('default="FULL_SHARD"', TABLE + CHOSEN),
        (OPTION.replace("default", "const"), TABLE + CHOSEN),
        ('default="FULL_SHARD", choices=["FULL_SHARD", "SHARD_GRAD_OP"]', TABLE + CHOSEN),
        (OPTION, TABLE + CHOSEN + "\n    print(list(strategies))"),
        (OPTION, TABLE + '    args.sharding_strategy = input("? ")\n' + CHOSEN),
        (OPTION, TABLE + CHOSEN.replace("[args", ".get(args").replace("gy]", "gy)")),
    ],
)
def test_a_table_that_may_refuse_a_name_stays(option: str, lines: str) -> None:
    assert '"NO_SHARD": "NO_SHARD"' in after(option, lines)


@pytest.mark.parametrize("asks", ['.get(name, Tables.STRATEGIES["FULL_SHARD"])', "[name]"])
@pytest.mark.parametrize("imports", ["", "from tables import Tables"])
def test_a_table_of_a_class_says_which_strategies_there_are(asks: str, imports: str) -> None:
    table = TABLE.replace("    # Sharding strategy\n    strategies", "    STRATEGIES")
    cls = f"class Tables:\n{table}"
    start = "from torch.distributed.fsdp import ShardingStrategy\n"
    lines = f"    strategy = Tables.STRATEGIES{asks.replace('name', 'args.sharding_strategy')}"
    text = PROGRAM.format(option='default="FULL_SHARD"', lines=lines, given="strategy")
    text = text.replace("\n\n\ndef main", f"\n{imports or cls}\n\n\ndef main", 1)
    sources = [Source("train.py", text)]
    sources += [Source("tables.py", start + "\n\n" + cls)] if imports else []
    done = migrate(tuple(sources), knowledge.codemods())
    assert done.ledger.manual == []
    after = done.after[0].text
    assert '"NO_SHARD"' in after
    assert "HYBRID_SHARD" not in after
    assert "SHARD_GRAD_OP" not in after


def test_a_script_of_the_project_that_trains_by_a_framework_changes_nothing() -> None:
    other = "import deepspeed\n\nengine, *_ = deepspeed.initialize(model=object(), config={})\n"
    text = PROGRAM.format(option='default="FULL_SHARD"', lines=TABLE + CHOSEN, given="strategy")
    sources = (Source("train.py", text), Source("other.py", other))
    done = migrate(sources, knowledge.codemods())
    assert "ShardingStrategy" not in done.after[0].text
    assert done.after[1].text == other
