"""Gradients are accumulated under the `no_sync` of FSDP1.

## What it does

Finds `no_sync()` of a model that is known to be wrapped by `FullyShardedDataParallel`.

## Why is this bad

`FSDPModule` has no `no_sync`; `set_requires_gradient_sync(flag)` before each micro-batch switches the same thing, and the
last one must switch it on again.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
-from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
+from torch.distributed.fsdp import fully_shard

 dist.init_process_group("nccl")
-model = FSDP(nn.Linear(8, 8).cuda())
-with model.no_sync():
-    model(torch.randn(4, 8)).sum().backward()
+torch.cuda.set_device(dist.get_node_local_rank())
+model = nn.Linear(8, 8).cuda()
+fully_shard(model)
+model.set_requires_gradient_sync(False)
 model(torch.randn(4, 8)).sum().backward()
+model.set_requires_gradient_sync(True)
+model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a context that the last micro-batch does without.
- Found: an `ExitStack`.
- Not found: a model that unresolved code wraps.

## Known limits

A model whose wrapper cannot be resolved could be one of DDP, which keeps its `no_sync`.

## References

- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`no_sync`)
- `torch/distributed/fsdp/_fully_shard/_fully_shard.py` (`set_requires_gradient_sync`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP106", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """Gradients are accumulated under the `no_sync` of FSDP1."""
    yield from used(trace, "FSDP106")
