"""Every number of a plan beside what the same script does on real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdp2lint.verify.plan.data import Plan, Transfer, amounts
from fsdp2lint.verify.plan.errand import Answer

ROOT = Path(__file__).resolve().parents[2]
CASES = {
    2: [
        "fsdp1:FULL_SHARD:fp32:adamw",
        "fsdp1:FULL_SHARD-flat:bf16:sgd",
        "fsdp1:SHARD_GRAD_OP:bf16:plain",
        "fsdp1:NO_SHARD:fp32:adadelta",
        "fsdp1:NO_SHARD-flat:bf16:adamw",
        "fsdp1:FULL_SHARD:frozen:adamw",
        "fsdp2:default:fp32:adamw",
        "fsdp2:default:bf16:sgd",
        "fsdp2:false:bf16:rmsprop",
        "fsdp2:true:fp32:plain",
        "fsdp2:replicate:fp32:adadelta",
        "fsdp2:default:frozen:adamw",
        "fsdp1:FULL_SHARD:inside:plain",
        "fsdp1:FULL_SHARD:outside:plain",
        "fsdp1:SHARD_GRAD_OP:outside:plain",
        "fsdp1:FULL_SHARD:reentrant:plain",
        "fsdp2:default:inside:plain",
        "fsdp2:default:outside:plain",
        "fsdp2:false:outside:plain",
        "fsdp2:default:reentrant:plain",
    ],
    4: [
        "fsdp1:HYBRID_SHARD:bf16:adamw",
        "fsdp1:_HYBRID_SHARD_ZERO2-flat:fp32:sgd",
        "fsdp2:hybrid:bf16:adamw",
        "fsdp2:default:fp32:sgd",
        "fsdp2:two:fp32:sgd",
    ],
}
EACH = pytest.mark.parametrize(
    ("world", "case"), [(world, case) for world, cases in CASES.items() for case in cases]
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    own = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    }
    for world, cases in CASES.items():
        command = [sys.executable, "-m", "tests.verify.measured", str(folder), str(world), *cases]
        subprocess.run(command, cwd=ROOT, env=os.environ | own, check=True, timeout=240)
    return folder


def planned(results: Path, case: str) -> Plan:
    answer = (results / f"{case}.plan" / "answer.json").read_bytes()
    return msgspec.json.decode(answer, type=Answer).plan


@EACH
def test_a_plan_is_what_happens(results: Path, world: int, case: str) -> None:
    plan = planned(results, case)
    real: dict[str, Any] = json.loads((results / f"{case}.real.json").read_text())
    total = amounts(plan)
    assert plan.world == world
    for kind in ("gathered", "scattered", "reduced"):
        assert getattr(total.traffic, kind) == Transfer(*real.get(kind, (0, 0))), kind
    assert total.parameters == real["parameters"]
    assert total.gradients == real["gradients"]
    assert total.optimizer == real["optimizer"]
    assert total.replicated == 5 * 4  # the buffer


@EACH
def test_the_units_are_the_blocks_and_the_rest(results: Path, world: int, case: str) -> None:
    plan = planned(results, case)
    names = {unit.name: {tensor.name for tensor in unit.tensors} for unit in plan.units}
    assert sorted(names) == ["", "blocks.0", "blocks.1", "blocks.2"]
    assert names[""] == {"embed.weight"}
    assert "blocks.1.norm.bias" in names["blocks.1"]
    trained = {n for o in plan.optimizers for group in o.groups for n in group.names}
    frozen = {t.name for unit in plan.units for t in unit.tensors if not t.trainable}
    assert trained == {t.name for unit in plan.units for t in unit.tensors} - frozen
    assert bool(frozen) == (":frozen:" in case)


def test_reshard_is_told(results: Path) -> None:
    freed = {
        case: [unit.reshard for unit in planned(results, case).units]
        for cases in CASES.values()
        for case in cases
    }
    assert freed["fsdp1:FULL_SHARD:fp32:adamw"] == [False, True, True, True]
    assert freed["fsdp2:default:fp32:adamw"] == [False, True, True, True]
    assert freed["fsdp1:SHARD_GRAD_OP:bf16:plain"] == [False] * 4
    assert freed["fsdp2:false:bf16:rmsprop"] == [False] * 4
    assert freed["fsdp2:true:fp32:plain"] == [True] * 4
