"""DDP or FSDP1 is put around a sharded model, or `fully_shard` is applied to an FSDP1 model.

## What it does

Finds `DistributedDataParallel(model)` and `FullyShardedDataParallel(model)` for a model that `fully_shard` was
applied to (or that holds one), and `fully_shard` of an FSDP1 model or of what is inside one.

## Why is this bad

Each of them wants to own the parameters. DDP broadcasts plain tensors and fails on DTensors when it is built,
FSDP1 cannot flatten DTensors beside plain tensors, and a model that FSDP1 has flattened fails at the first
forward under `fully_shard`.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard
-from torch.nn.parallel import DistributedDataParallel

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-model = DistributedDataParallel(model)
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: DDP around a model of which a part is sharded.
- Found: FSDP1 around layers that are sharded afterwards.
- Not found: the composable form of DDP, which refuses the model.

## Known limits

`fully_shard` of a DDP model is not reported: it runs, and DDP's part of the work is for nothing. There is no fix:
what the outer wrapper was for (a second dimension of data parallelism is a 2-D mesh) is not in the code.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/nn/parallel/distributed.py`
- `torch/distributed/fsdp/_flat_param.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, Wrapping, rule, unwrapped

from .._common.parts import shard_within
from .._common.shared import Shard, cases, shards, together, wrapped_by

_NAMES = {"ddp": "DistributedDataParallel", "fsdp1": "FullyShardedDataParallel"}


@rule(code="FSDP225", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Wrappers around shards, and shards of what is wrapped."""
    for wrapping in trace.of(Wrapping):
        shard = _inside(trace, wrapping)
        if shard is not None:
            yield Finding(
                at=wrapping,
                message=f"`{_NAMES[wrapping.by]}` is put around `{wrapping.module.words()}`, which "
                "`fully_shard` was applied to: it cannot handle the sharded parameters and raises",
                because=(shard.reason,),
            )
    for shard in shards(trace):
        wrapping_before = _around(trace, shard)
        if wrapping_before is not None:
            yield Finding(
                at=shard.event,
                message=f"`fully_shard({shard.module.words()})` is applied to what "
                "`FullyShardedDataParallel` has wrapped: it raises at the first forward",
                because=((wrapping_before, "wrapped here"),),
            )


def _inside(trace: Trace, wrapping: Wrapping) -> Shard | None:
    """The sharding of what a wrapper is put around."""
    if wrapping.by not in _NAMES:
        return None
    for guards, module in cases(wrapping, wrapping.module):
        if not wrapped_by(module, *_NAMES):
            shard = shard_within(trace, wrapping, module, guards)
            if shard is not None:
                return shard
    return None


def _around(trace: Trace, shard: Shard) -> Wrapping | None:
    """FSDP1's wrapping of a module, or of one around it, before it is sharded."""
    around = trace.around(shard.module)
    for wrapping in reversed(trace.of(Wrapping)):
        if wrapping.by == "fsdp1" and unwrapped(wrapping.module) in around:
            first = trace.precedes(wrapping, shard.event)
            if first and together(wrapping.guards, shard.guards):
                return wrapping
    return None
