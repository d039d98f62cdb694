"""The state of an optimizer is translated in the way of FSDP1.

## What it does

Finds `optim_state_dict`, `optim_state_dict_to_load`, their five older relatives, and `load_sharded_optimizer_state_dict`.

## Why is this bad

They translate between flat parameters and names. Without flat parameters `get_optimizer_state_dict` and
`set_optimizer_state_dict` do it for every wrapper. The older relatives say that they may go.

## Example

```diff
 import torch
-import torch.distributed as dist
 from torch import nn
-from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
+from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


 def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
-    return FSDP.optim_state_dict(model, optimizer)
+    return get_optimizer_state_dict(model, optimizer)
```

## Forms

- Found: the way back.
- Found: the class of the model in the place of its name.
- Not found: a name that `getattr` is given.

## Known limits

None known.

## References

- `torch/distributed/fsdp/fully_sharded_data_parallel.py` (`optim_state_dict`)
- `torch/distributed/checkpoint/state_dict.py` (`get_optimizer_state_dict`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from ._common.fsdp1 import used


@rule(code="FSDP105", group="migration")
def check(trace: Trace) -> Iterator[Finding]:
    """The state of an optimizer is translated in the way of FSDP1."""
    yield from used(trace, "FSDP105")
