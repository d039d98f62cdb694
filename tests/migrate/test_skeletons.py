"""What the ledger shows as code where Lightning's FSDP1 is left for manual migration."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.support.running import invoke

HEADER = """\
import lightning.pytorch as pl
from lightning.pytorch.strategies import FSDPStrategy
from elsewhere import Block, Model, data

"""
BY_CLASS = "FSDPStrategy(auto_wrap_policy={Block}, sharding_strategy='SHARD_GRAD_OP')"
SIZED = "ModelParallelStrategy(data_parallel_size=4, tensor_parallel_size=1, save_distributed_checkpoint=False)"
COUNTED = SIZED.replace("=4", "=torch.cuda.device_count()")
WRAPS = "if isinstance(module, Block):"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (
            f"trainer = pl.Trainer(strategy={BY_CLASS}, devices=4)",
            (SIZED, WRAPS, "reshard_after_forward=False"),
        ),
        (f"strategy = {BY_CLASS}\ntrainer = pl.Trainer(strategy=strategy)", (COUNTED, WRAPS)),
        ("trainer = pl.Trainer(strategy='fsdp', devices=4)", (SIZED, "Block is the class")),
        (
            "trainer = pl.Trainer(strategy=FSDPStrategy(state_dict_type='sharded'), devices=4)",
            (SIZED.replace(", save_distributed_checkpoint=False", ""),),
        ),
    ],
)
def test_code_to_begin_with(tmp_path: Path, script: str, expected: tuple[str, ...]) -> None:
    text = HEADER + script + "\ntrainer.fit(Model(), data())\n"
    (tmp_path / "train.py").write_text(text)
    shown = invoke("migrate", "-f", "json", "train.py", cwd=tmp_path)
    left = [one for one in json.loads(shown.stdout)["occurrences"] if one["fate"] == "manual"]
    (skeleton,) = {one["skeleton"] for one in left if one["skeleton"]}
    assert all(part in skeleton for part in (*expected, "def configure_model(self):"))
    ast.parse(skeleton)
    for kind in ("text", "markdown"):
        lines = [
            line.strip()
            for line in invoke("migrate", "-f", kind, "train.py", cwd=tmp_path).stdout.splitlines()
        ]
        assert all(line.strip() in lines for line in skeleton.splitlines())


def test_other_frameworks_have_none(tmp_path: Path) -> None:
    text = "from lightning.fabric import Fabric\n\nfabric = Fabric(strategy='fsdp')\n"
    (tmp_path / "train.py").write_text(text)
    shown = json.loads(invoke("migrate", "-f", "json", "train.py", cwd=tmp_path).stdout)
    assert shown["occurrences"]
    assert not any(one["skeleton"] for one in shown["occurrences"])
