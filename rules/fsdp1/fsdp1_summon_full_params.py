"""Whole parameters are summoned in the way of FSDP1.

## What it does

Finds `summon_full_params`, of the class and of a model.

## Why is this bad

On a sharded model it does nothing and says nothing: the parameters stay shards. `full_tensor()` of one parameter,
`unshard()` and `reshard()` of a module, or `get_model_state_dict` give whole values.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
-from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
+from torch.distributed.fsdp import fully_shard

 dist.init_process_group("nccl")
-model = FSDP(nn.Linear(8, 8).cuda())
-with FSDP.summon_full_params(model):
-    print(model.weight.shape)
+torch.cuda.set_device(dist.get_node_local_rank())
+model = nn.Linear(8, 8).cuda()
+fully_shard(model)
+print(model.weight.full_tensor().shape)
```

## Forms

- Found: the function under another name.
- Not found: the private function behind it.

## Known limits

None known.

## References

- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`summon_full_params`)
- https://docs.pytorch.org/docs/stable/distributed.tensor.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP108", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """Whole parameters are summoned in the way of FSDP1."""
    yield from used(trace, "FSDP108")
