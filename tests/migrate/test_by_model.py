"""The ledger by model: what a reviewer reads, and what is no model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.running import invoke as program

TWO = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def prepare(model):
    return FSDP(
        model,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    )


def main():
    student = prepare(nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(student.parameters())
    student(torch.randn(2, 8)).sum().backward()
    student.clip_grad_norm_(1.0)
    optimizer.step()


if __name__ == "__main__":
    main()
"""

OTHER = """\
import functools

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

if __name__ == "__main__":
    judge = FSDP(nn.Linear(8, 8), auto_wrap_policy=functools.partial(lambda module, recurse, nonwrapped_numel: True))
    with judge.no_sync():
        judge(torch.randn(2, 8)).sum().backward()
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "judge.py").write_text(OTHER)
    (tmp_path / "train.py").write_text(TWO)
    return tmp_path


def _markdown(tree: Path) -> str:
    return program("migrate", "-q", "-f", "markdown", ".", cwd=tree).stdout


def test_each_model_has_a_chapter_with_its_lines(tree: Path) -> None:
    titles = [line for line in _markdown(tree).splitlines() if line.startswith("## ")]
    assert titles == [
        "## The model of judge.py:8",
        "## The model of train.py:7",
        "## Everything else",
    ]
    judge, train, rest = _markdown(tree).split("\n## ")[1:]
    was, _, becomes = train.partition("It becomes:")
    assert (
        "return FSDP(\n    model,\n    sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,\n)" in was
    )
    assert "fully_shard(model, reshard_after_forward=False)" in becomes
    assert "`clip_grad_norm_`" in train
    assert "`no_sync`" in judge
    assert "clip_grad_norm_" not in judge
    assert "import" in rest
    assert "`clip_grad_norm_`" not in rest


def test_each_entry_stands_in_one_chapter(tree: Path) -> None:
    shown = program("migrate", "-q", "-f", "json", "-f", "markdown=l.md", ".", cwd=tree)
    data = json.loads(shown.stdout)
    cells = [line.split(" | ") for line in (tree / "l.md").read_text().splitlines()]
    places = [(row[0].removeprefix("| "), row[1]) for row in cells if len(row) == 5]
    for one in data["occurrences"]:
        if one["kind"] != "import":
            at = one["filename"], str(one["location"]["row"])
            same = [
                o for o in data["occurrences"] if (o["filename"], str(o["location"]["row"])) == at
            ]
            assert places.count(at) == len(same)
    built = [[one["filename"] for one in model] for model in data["models"]]
    assert built == [["judge.py"], ["train.py"]]


def test_a_model_that_stays_says_so(tmp_path: Path) -> None:
    settings = "from settings import unknown\n"
    (tmp_path / "train.py").write_text(
        settings + TWO.replace("        model,\n", "        model,\n        **unknown,\n")
    )
    said = _markdown(tmp_path)
    assert "## The model of train.py:8" in said
    assert "It stays as it is:\n\n```python\nreturn FSDP(\n    model,\n    **unknown,\n" in said
    assert "It becomes" not in said


def test_without_a_model_there_are_no_chapters(tmp_path: Path) -> None:
    (tmp_path / "library.py").write_text(
        "def clip(model):\n    return model.clip_grad_norm_(1.0)\n\n\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel\n"
    )
    said = _markdown(tmp_path)
    assert "## " not in said
    assert "| library.py | " in said


def test_the_page_has_a_line_above_the_entries_of_a_model(tree: Path) -> None:
    program("migrate", "-q", "-f", "html=l.html", ".", cwd=tree)
    page = (tree / "l.html").read_text()
    assert page.count('<th colspan="5">The model of ') == 2
    assert page.index("judge.py:8</th>") < page.index("train.py:7</th>")


def test_cells_and_settings_have_no_chapter(tmp_path: Path) -> None:
    """Their lines are counted otherwise than those of a Python file."""
    cells = [
        OTHER.partition("if __name__")[0],
        "judge = FSDP(nn.Linear(8, 8))\njudge.clip_grad_norm_(1.0)\n",
    ]
    shown: list[dict[str, object]] = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": one}
        for one in cells
    ]
    notebook = {"cells": shown, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "train.ipynb").write_text(json.dumps(notebook))
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config: {fsdp_use_orig_params: true}\n"
    )
    said = _markdown(tmp_path)
    assert "## " not in said
    assert "| train.ipynb | cell 2:1 | `FullyShardedDataParallel` | changed |" in said
    assert "| fsdp.yaml | 2 | " in said
