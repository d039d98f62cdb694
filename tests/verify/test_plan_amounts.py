"""Every number of a plan beside what the same script does on real ranks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fsdp2lint.plan.data import Plan, Transfer, amounts
from fsdp2lint.plan.errand import Answer

from .scenes import Server, serving

pytestmark = pytest.mark.ranks

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
    8: [
        "fsdp1:HYBRID_SHARD-flat:fp32:adamw",
        "fsdp2:hybrid:fp32:plain",
        "fsdp2:true:bf16:adamw",
    ],
}
EACH = pytest.mark.parametrize(
    ("world", "case"), [(world, case) for world, cases in CASES.items() for case in cases]
)


class Results:
    """Plans and measurements, each made when it is asked for and once."""

    def __init__(self, server: Server, folder: Path) -> None:
        self._server, self.folder = server, folder

    def of(self, world: int, case: str) -> tuple[Plan, dict[str, Any]]:
        """What is planned of a case, and what is measured."""
        real, plan = self.folder / f"{case}.real.json", self.folder / f"{case}.plan"
        if not plan.exists():
            self._server.ask(json.dumps([str(self.folder), world, case]))
        answer = msgspec.json.decode((plan / "answer.json").read_bytes(), type=Answer)
        return answer.plan, json.loads(real.read_text())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    interface = "lo0" if sys.platform == "darwin" else "lo"
    with serving("measured", GLOO_SOCKET_IFNAME=interface) as server:
        yield Results(server, tmp_path_factory.mktemp("measured"))


@EACH
def test_a_plan_is_what_happens(results: Results, world: int, case: str) -> None:
    plan, real = results.of(world, case)
    total = amounts(plan)
    assert plan.world == world
    for kind in ("gathered", "scattered", "reduced"):
        assert getattr(total.traffic, kind) == Transfer(*real.get(kind, (0, 0))), kind
    assert total.parameters == real["parameters"]
    assert total.gradients == real["gradients"]
    assert total.optimizer == real["optimizer"]
    assert total.replicated == 5 * 4  # the buffer
    expect_blocks_and_the_rest(plan, frozen_too=":frozen:" in case)


def expect_blocks_and_the_rest(plan: Plan, frozen_too: bool) -> None:
    """The units are the blocks and what is left, and all that is trainable is trained."""
    names = {unit.name: {tensor.name for tensor in unit.tensors} for unit in plan.units}
    assert sorted(names) == ["", "blocks.0", "blocks.1", "blocks.2"]
    assert names[""] == {"embed.weight"}
    assert "blocks.1.norm.bias" in names["blocks.1"]
    trained = {n for o in plan.optimizers for group in o.groups for n in group.names}
    frozen = {t.name for unit in plan.units for t in unit.tensors if not t.trainable}
    assert trained == {t.name for unit in plan.units for t in unit.tensors} - frozen
    assert bool(frozen) == frozen_too


@pytest.mark.parametrize(
    ("case", "freed"),
    [
        ("fsdp1:FULL_SHARD:fp32:adamw", [False, True, True, True]),
        ("fsdp2:default:fp32:adamw", [False, True, True, True]),
        ("fsdp1:SHARD_GRAD_OP:bf16:plain", [False] * 4),
        ("fsdp2:false:bf16:rmsprop", [False] * 4),
        ("fsdp2:true:fp32:plain", [True] * 4),
    ],
)
def test_reshard_is_told(results: Results, case: str, freed: list[bool]) -> None:
    assert [unit.reshard for unit in results.of(2, case)[0].units] == freed
