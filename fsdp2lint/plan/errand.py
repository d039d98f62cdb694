"""What the planning process is asked for, and what it answers."""

from __future__ import annotations

import msgspec

from fsdp2lint.plan.data import Plan
from fsdp2lint.rehearse.outcome import Frame, Request


class Errand(msgspec.Struct, frozen=True):
    """What the process is asked for."""

    request: Request
    world: int
    hollow: bool


class Answer(msgspec.Struct, frozen=True):
    """What it found: the plan as far as it was made, and why the script ended early."""

    plan: Plan
    error: str = ""
    frames: tuple[Frame, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether there are sharded models and optimizers."""
        return bool(self.plan.models and self.plan.optimizers)


def environment(world: int, per_node: int) -> dict[str, str]:
    """What torchrun would tell rank 0."""
    local = min(world, per_node)
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_WORLD_SIZE": str(-(-world // local)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "plan",
    }
