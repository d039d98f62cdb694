"""`MixedPrecision` is the precision of FSDP1.

## What it does

Finds `torch.distributed.fsdp.MixedPrecision`.

## Why is this bad

`fully_shard` wants a `MixedPrecisionPolicy`; with a `MixedPrecision` the first forward fails. The two differ: the new one
casts the inputs of every unit by default, the old one those of the root only, and buffers are no longer cast.

## Example

```diff
 import torch
-from torch.distributed.fsdp import MixedPrecision
+from torch.distributed.fsdp import MixedPrecisionPolicy

-precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
+precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
```

## Forms

- Found: a partial call.
- Not found: a module that is imported by its name.

## Known limits

Precisions that are put together from configuration are found where the class is named.

## References

- `torch/distributed/fsdp/api.py` (`MixedPrecision`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_api.py` (`MixedPrecisionPolicy`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP103", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """`MixedPrecision` is the precision of FSDP1."""
    yield from used(trace, "FSDP103")
