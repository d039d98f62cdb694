"""A wrap policy of FSDP1 chooses the units.

## What it does

Finds the policies of `torch.distributed.fsdp.wrap` and `enable_wrap`, `wrap`.

## Why is this bad

`fully_shard` takes no policy: each call makes one unit of what it is given, so a plain loop over the blocks says
which. `fsdp2lint migrate` writes that loop.

## Example

```diff
-import functools
+import torch
+import torch.distributed as dist
+from torch import nn
+from torch.distributed.fsdp import fully_shard

-from torch import nn
-from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
-
-policy = functools.partial(
-    transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer}
-)
+dist.init_process_group("nccl")
+model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2)
+for block in model.layers:
+    fully_shard(block)
+fully_shard(model)
```

## Forms

- Found: a policy by size.
- Found: `enable_wrap` and `wrap`.
- Not found: a policy that the project wrote itself.

## Known limits

A policy that the project wrote itself is seen only through the call that it is passed to.

## References

- `torch/distributed/fsdp/wrap.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP102", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """A wrap policy of FSDP1 chooses the units."""
    yield from used(trace, "FSDP102")
