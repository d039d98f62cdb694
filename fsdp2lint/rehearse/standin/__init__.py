"""The device stand-in: scripts written for CUDA and NCCL run on CPU and gloo, unchanged.

Device *objects* stay what the script made them (``torch.device("cuda", 1)`` works without a GPU);
only where a device is used it becomes the CPU. What was replaced is counted and reported.
"""

from __future__ import annotations


def install(replaced: dict[str, int]) -> None:
    """Replace what a CPU cannot do in this process; ``replaced`` counts each use by what it was."""
    from fsdp2lint.rehearse.standin import (
        accelerator,
        amp,
        attention,
        cuda,
        data,
        ddp,
        fsdp,
        graphs,
        groups,
        half,
        older,
        saving,
        spawn,
        tensors,
        triton,
    )
    from fsdp2lint.rehearse.standin.replace import Counted

    counted = Counted(replaced)
    for part in (
        tensors,
        half,
        cuda,
        graphs,
        accelerator,
        amp,
        attention,
        data,
        ddp,
        groups,
        fsdp,
        older,
        saving,
        spawn,
        triton,
    ):
        part.install(counted)


def install_launch() -> None:
    """On GPUs the script runs as it is, but that the ranks are there already: what starts them and where they meet is replaced."""
    from fsdp2lint.rehearse.standin import groups, spawn
    from fsdp2lint.rehearse.standin.replace import Counted

    groups.meet_as_started(Counted({}))
    spawn.call_on_each_rank(Counted({}))
