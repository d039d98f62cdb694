"""The names of what wraps and shards models, and when FSDP1 holds whole parameters."""

from __future__ import annotations

from fsdp2lint.api import Event, Instance, options

FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
FSDP_MODULE = "torch.distributed.fsdp.FSDPModule"
DDP = "torch.nn.parallel.DistributedDataParallel"
DTENSOR = "torch.distributed.tensor.DTensor"


def is_gathered(event: Event) -> bool:
    """Whether an event happens while FSDP1 has gathered the parameters."""
    return any(
        isinstance(one, Instance) and one.born is not None and "summon_full_params" in one.born.code
        for manager in event.within
        for one in options(manager)
    )
