"""A sharded model is deep-copied.

## What it does

Finds `copy.deepcopy` and `AveragedModel` of a model that `fully_shard` was applied to, or that holds one.

## Why is this bad

A module that `fully_shard` has changed cannot be copied: its `__deepcopy__` raises AssertionError. A twin
(a moving average, a frozen reference) is copied before the sharding and sharded itself, or averaged parameter by
parameter.

## Example

```diff
 import copy

 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
+twin = copy.deepcopy(model)
 fully_shard(model)
-twin = copy.deepcopy(model)
+fully_shard(twin)
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a moving average of the project, which copies in its constructor.
- Found: `AveragedModel`, which copies what it is given.
- Not found: an object that is no module and holds the model.
- Not found: a copy that another library makes.

## Known limits

There is no fix: a copy made before the sharding has the weights of that time. Copies inside libraries
(`ModelEmaV2` of timm, `ref_model=None` of trl) and of objects that are no modules but hold one are not seen.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fully_shard.py` (`_unimplemented_deepcopy`)
- `torch/optim/swa_utils.py` (`AveragedModel.__init__` calls `deepcopy`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from .._common.parts import COPIES, refused_copy


@rule(code="FSDP223", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Deep copies of what is sharded."""
    for called in trace.calls(*COPIES):
        found = refused_copy(trace, called)
        if found is None:
            continue
        shard, said = found
        yield Finding(
            at=called,
            message=f"`{COPIES[called.name]}({said})` copies a model that `fully_shard` was applied "
            "to: it raises AssertionError; copy before the sharding and shard the copy too",
            because=(shard.reason,),
        )
