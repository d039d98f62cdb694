"""Code asks whether a module is wrapped by FSDP1.

## What it does

Finds `isinstance` and other tests with `FullyShardedDataParallel`, `fsdp_modules` and `check_is_root`.

## Why is this bad

After a migration the answer is always no, and the branch behind it is silently dead. Sharded modules are instances of
`FSDPModule`.

## Example

```diff
 from torch import nn
-from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
+from torch.distributed.fsdp import FSDPModule


 def sharded(model: nn.Module) -> bool:
-    return isinstance(model, FSDP)
+    return isinstance(model, FSDPModule)
```

## Forms

- Found: a test of each module.
- Found: a test of the class by `is`.
- Not found: a part of the class's name.

## Known limits

Tests by the name of the class are found only where the name is written out (FSDP111).

## References

- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`fsdp_modules`)
- `torch/distributed/fsdp/_fully_shard/_fully_shard.py` (`FSDPModule`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP110", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """Code asks whether a module is wrapped by FSDP1."""
    yield from used(trace, "FSDP110")
