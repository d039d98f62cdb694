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

Found: a trainer that is given the dtype.

```python
class Trainer:
    def __init__(self, model, dtype):
        self.model = fully_shard(model).to(dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self):
        self.model(torch.randn(4, 8, dtype=torch.bfloat16)).sum().backward()
        self.optimizer.step()


dist.init_process_group("gloo")
Trainer(nn.Linear(8, 8), torch.bfloat16).step()
```

Found: each block, behind a switch of the program.

```python
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--half", action="store_true")
args = parser.parse_args()
dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
for block in model:
    fully_shard(block)
    if args.half:
        block.half()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
```

Not found: the data of each parameter.

```python
dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
for p in model.parameters():
    p.data = p.data.to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
```

Not found: the dtype of another tensor.

```python
dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
model.to(torch.zeros(1, dtype=torch.bfloat16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
```

## Known limits

There is no fix: the policy belongs to the `fully_shard` calls, and inputs may have been cast by hand. Silent
when the model was cast to the same dtype before it was sharded, and when nothing is trained.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`MixedPrecisionPolicy`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`to_sharded_dtensor`, `reset_sharded_param`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Moved, Optimizer, Stepped, Trace, Value, options, rule, unwrapped

from .._common.casts import lowered_to
from .._common.shared import overlap, sharded, together


@rule(code="FSDP221", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Casts of shards."""
    for moved in trace.of(Moved):
        dtype = lowered_to(moved)
        found = None if dtype is None else sharded(trace, moved, moved.module)
        if dtype is None or found is None:
            continue
        shard, module = found
        if _cast_before(trace, moved, module) or not _trained(trace, moved, module):
            continue
        yield Finding(
            at=moved,
            message=f"`{module.words()}` is sharded: this cast lowers the weights that the optimizer updates to "
            f"`{dtype}`; mixed precision is `MixedPrecisionPolicy(param_dtype=…)`",
            because=((shard.event, f"`{shard.module.words()}` is sharded here"),),
        )


def _cast_before(trace: Trace, moved: Moved, module: Value) -> bool:
    return any(
        lowered_to(earlier) is not None and earlier.at.node is not moved.at.node
        for earlier in trace.before(moved, Moved)
        if overlap(trace, unwrapped(earlier.module), module) is not None
    )


def _trained(trace: Trace, moved: Moved, module: Value) -> bool:
    """Whether an optimizer steps over the module afterwards."""
    for stepped in trace.after(moved, Stepped):
        for optimizer in options(stepped.optimizer):
            if isinstance(optimizer, Optimizer) and together(stepped.guards, moved.guards):
                if any(overlap(trace, unwrapped(p.of), module) is not None for p in optimizer.over):
                    return True
    return False
