"""A model is wrapped by FSDP1, `FullyShardedDataParallel`.

## What it does

Finds every construction of `FullyShardedDataParallel`, however it was imported.

## Why is this bad

FSDP1 works, and gets no new features: it flattens parameters, so that names, shapes, frozen parameters and optimizer
states have to be translated, and a checkpoint depends on the wrapping. `fully_shard` shards each parameter by itself.
`check` shows this as a note; `fsdp2lint migrate` rewrites it.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
-from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
+from torch.distributed.fsdp import fully_shard

 dist.init_process_group("nccl")
-model = FSDP(nn.Linear(8, 8).cuda())
+torch.cuda.set_device(dist.get_node_local_rank())
+model = nn.Linear(8, 8).cuda()
+fully_shard(model)
```

## Forms

- Found: a partial call.
- Found: a class that inherits from it.
- Not found: a wrapper that accelerate makes.

## Known limits

Wrappers that a framework makes (accelerate, Lightning) are reported by `migrate` only.

## References

- https://docs.pytorch.org/docs/stable/fsdp.html
- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`FullyShardedDataParallel`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP101", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """Building the wrapper."""
    yield from used(trace, "FSDP101")
