"""Gradients are clipped by the method of FSDP1.

## What it does

Finds `clip_grad_norm_` as a method of a model.

## Why is this bad

`FSDPModule` has no such method. `torch.nn.utils.clip_grad_norm_` gives the norm over all ranks for DTensor gradients; its result
is a DTensor.

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
 model(torch.randn(4, 8)).sum().backward()
-model.clip_grad_norm_(1.0)
+torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
```

## Forms

- Found: a function that is given the model.
- Not found: a name that `getattr` is given.

## Known limits

None known.

## References

- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`clip_grad_norm_`)
- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP107", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """Gradients are clipped by the method of FSDP1."""
    yield from used(trace, "FSDP107")
