"""`ShardedGradScaler` scales the loss for FSDP1.

## What it does

Finds `torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler`.

## Why is this bad

`torch.amp.GradScaler` knows DTensor gradients since torch 2.5: an overflow on one rank makes all of them skip the step. The
sharded one is for flat parameters, and disables itself without CUDA.

## Example

```diff
-from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
+import torch

-scaler = ShardedGradScaler()
+scaler = torch.amp.GradScaler("cuda")
```

## Forms

- Found: an import under another name.
- Not found: a module that is imported by its name.

## Known limits

None known.

## References

- `torch/distributed/fsdp/sharded_grad_scaler.py`
- https://docs.pytorch.org/docs/stable/amp.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP109", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """`ShardedGradScaler` scales the loss for FSDP1."""
    yield from used(trace, "FSDP109")
