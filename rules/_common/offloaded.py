"""Shardings whose parameters lie on the CPU."""

from __future__ import annotations

from fsdp2lint.api import Clipped, Trace, Value, options

from .shared import Shard, class_name, overlap, shards, together


def offloaded(trace: Trace, clipped: Clipped) -> Shard | None:
    """The sharding, with offloading in some run, of a module whose gradients are clipped."""
    for shard in shards(trace):
        if not any(class_name(one).endswith(".CPUOffloadPolicy") for one in policies(shard)):
            continue
        if shard.order < clipped.order and together(shard.guards, clipped.guards):
            if any(overlap(trace, p.of, shard.module) is not None for p in clipped.parameters):
                return shard
    return None


def policies(shard: Shard) -> tuple[Value, ...]:
    """The policies that a sharding can be given, in all runs."""
    policy = shard.event.options.get("offload_policy")
    return () if policy is None else tuple(options(policy))
