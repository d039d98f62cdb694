"""A communication hook is registered with FSDP1.

## What it does

Finds `register_comm_hook` of a model that is wrapped by `FullyShardedDataParallel`.

## Why is this bad

`FSDPModule` has no such method. Compression is `reduce_dtype` of the policy; anything else has to be written as an all-reduce
hook or as a custom reduce-scatter, with another signature.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
-from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
-
-
-def hook(state: object, gradient: torch.Tensor) -> None:
-    dist.all_reduce(gradient)
-
+from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

 dist.init_process_group("nccl")
-model = FSDP(nn.Linear(8, 8).cuda())
-model.register_comm_hook(None, hook)
+torch.cuda.set_device(dist.get_node_local_rank())
+model = nn.Linear(8, 8).cuda()
+fully_shard(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
```

## Forms

- Found: a helper function that is given the model.
- Not found: each module that `fsdp_modules` lists.

## Known limits

The hooks of DDP have the same name; a model whose wrapper cannot be resolved is not reported.

## References

- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`register_comm_hook`)
- `torch/distributed/fsdp/_fully_shard/_fully_shard.py` (`set_all_reduce_hook`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP112", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """A communication hook is registered with FSDP1."""
    yield from used(trace, "FSDP112")
