"""A module is sharded on the first rank only, or on all but the first.

## What it does

Finds `fully_shard` calls under a test of the rank (`if rank == 0:`), behind whose other side the same module is not
sharded, when the module is used afterwards.

## Why is this bad

`fully_shard` itself communicates with no other rank, so this line succeeds. The groups that it makes gather and reduce over all ranks:
the ranks that sharded the module wait in its first forward for those that did not, and those wait nowhere. The job hangs.
Where ranks shard in different ways, each collective meets another one.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
-if dist.get_rank() == 0:
-    fully_shard(model)
+fully_shard(model)
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a helper function that the other ranks leave.
- Found: a rank from the environment.
- Not found: every second rank.
- Not found: an order of the blocks that depends on the rank.

## Known limits

Only tests for the first rank. A `mesh` counts when it is what `init_device_mesh` returns and its shape is computed
(`(world_size,)`): a slice of it, or a mesh of fixed numbers, may be for these ranks alone. Modules that are the
element of an unresolved list are left alone too.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py` (`unshard`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Container,
    Finding,
    Forward,
    Guard,
    Guards,
    Literal,
    MainRank,
    Mesh,
    Trace,
    Value,
    is_choice,
    options,
    parts_along,
    rule,
    unwrapped,
)

from .._common.meshes import given_meshes, made
from .._common.shared import Shard, overlap, shards


@rule(code="FSDP418", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Groups whose collectives not all ranks make."""
    for shard in shards(trace):
        side = _side(shard)
        if side is None or shard.event.open or not _over_all(trace, shard):
            continue
        if _is_one_of_many(shard.module) or _elsewhere_too(trace, shard, side):
            continue
        forward = next(
            (f for f in trace.after(shard.event, Forward) if _uses(trace, f, shard)), None
        )
        if forward is not None and not _one_each(trace, forward, shard, side):
            yield Finding(
                at=shard.event,
                message=f"`{shard.module.words()}` is sharded on {_ranks(side)} only: their forward waits for the other ranks, "
                "which gather nothing, and the job hangs",
                because=((forward, "it runs forward here"),),
            )


def _over_all(trace: Trace, shard: Shard) -> bool:
    """Whether the group is surely one of all ranks, or of the rows of a mesh that all ranks make.

    A slice may be one rank wide, and `init_device_mesh` takes a mesh of fewer ranks than there are.
    """
    if "mesh" not in shard.event.options:
        return True
    given = list(given_meshes(shard.event))
    return bool(given) and all(_of_the_world(trace, one) for one in given)


def _of_the_world(trace: Trace, mesh: Value) -> bool:
    """Whether the size of a whole mesh is computed, so that it follows the number of ranks."""
    called = made(trace, mesh) if isinstance(mesh, Mesh) else None
    shape = None if called is None else called.argument(1, "mesh_shape")
    if called is None or not isinstance(shape, Container) or shape.open:
        return False
    sizes = [size for _, size in trace.memory.entries(shape, called.guards)]
    return any(not isinstance(size, Literal) for size in sizes)


def _side(shard: Shard) -> Guard | None:
    """The test for the first rank under which a sharding surely is."""
    for clause in shard.guards.clauses:
        (guard,) = clause if len(clause) == 1 else (None,)
        if guard is not None and isinstance(guard.test, MainRank) and guard.test.scope == "global":
            return guard
    return None


def _ranks(side: Guard) -> str:
    return "the first rank" if side.taken else "all ranks but the first"


def _is_one_of_many(module: Value) -> bool:
    """Whether a module is an element of something that is not known: each rank may have elements of its own."""
    keys = (part.key for part in parts_along(module))
    return not all(isinstance(key, str) and key.startswith(".") for key in keys)


def _by_others(trace: Trace, shard: Shard, side: Guard) -> Iterator[Shard]:
    """What the other ranks shard in the same run, or may, where these shard a module."""
    chosen = (c for c in shard.guards.clauses if any(is_choice(guard.test) for guard in c))
    others = Guards(shard.guards.clauses - side.unit - {*chosen} | (~side).unit)
    for other in shards(trace):
        if other is not shard and not other.guards.excludes(others):
            yield other


def _elsewhere_too(trace: Trace, shard: Shard, side: Guard) -> bool:
    """Whether the other ranks shard the module as well."""
    return any(other.module is shard.module for other in _by_others(trace, shard, side))


def _one_each(trace: Trace, forward: Forward, shard: Shard, side: Guard) -> bool:
    """Whether the other ranks have a module of their own here, which they shard: by the same call, or by another."""
    mine = [unwrapped(module) for module in options(forward.module)]
    return any(
        other.event.at.node is shard.event.at.node
        or (shard.module in mine and other.module in mine)
        for other in _by_others(trace, shard, side)
    )


def _uses(trace: Trace, forward: Forward, shard: Shard) -> bool:
    return any(
        overlap(trace, unwrapped(m), shard.module) is not None for m in options(forward.module)
    )
