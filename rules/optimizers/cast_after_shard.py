"""A sharded model is cast to low precision and trained: its float32 weights are gone.

## What it does

Finds `.half()`, `.bfloat16()` and `.to(dtype)` with a 16-bit dtype of a model that `fully_shard` was applied
to before, in a script that makes optimizer steps.

## Why is this bad

`fully_shard` keeps the shards in the dtype of the parameters and gathers them in the `param_dtype` of its
policy; the optimizer works on the shards. The cast lowers the shards themselves: small updates are rounded
away, the optimizer's state is in 16 bits too, `float16` overflows. Nothing raises. Mixed precision is
`MixedPrecisionPolicy(param_dtype=…)`.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
-from torch.distributed.fsdp import fully_shard
+from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
-fully_shard(model)
-model.bfloat16()
+fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
 optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
-model(torch.randn(4, 8, dtype=torch.bfloat16)).sum().backward()
+model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: a trainer that is given the dtype.
- Found: each block, behind a switch of the program.
- Not found: the data of each parameter.
- Not found: the dtype of another tensor.

## Known limits

There is no fix: the policy belongs to the `fully_shard` calls, and inputs may have been cast by hand. Silent
when the model was cast to the same dtype before it was sharded, and when nothing is trained.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`MixedPrecisionPolicy`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`to_sharded_dtensor`, `reset_sharded_param`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Moved, Trace, Value, rule, unwrapped

from .._common.casts import lowered_to
from .._common.parts import holding_shards
from .._common.shared import overlap
from .._common.training import optimized_after


@rule(code="FSDP221", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Casts of shards."""
    for moved in trace.of(Moved):
        dtype = lowered_to(moved)
        found = None if dtype is None else holding_shards(trace, moved, moved.module)
        if dtype is None or found is None:
            continue
        shard, module = found
        if _cast_before(trace, moved, module):
            continue
        if not optimized_after(trace, moved, module, moved.guards):
            continue
        yield Finding(
            at=moved,
            message=f"`{module.words()}` is sharded: this cast lowers the weights that the optimizer updates to "
            f"`{dtype}`; mixed precision is `MixedPrecisionPolicy(param_dtype=…)`",
            because=(shard.reason,),
        )


def _cast_before(trace: Trace, moved: Moved, module: Value) -> bool:
    return any(
        lowered_to(earlier) is not None and earlier.at.node is not moved.at.node
        for earlier in trace.before(moved, Moved)
        if overlap(trace, unwrapped(earlier.module), module) is not None
    )
