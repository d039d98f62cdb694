"""A block is compiled, or wrapped for activation checkpointing, after it was sharded.

## What it does

Finds `torch.compile`, `checkpoint_wrapper` and `apply_activation_checkpointing` of a module inside a sharded
model, which was sharded itself before.

## Why is this bad

PyTorch's own order is tensor parallelism, activation checkpointing, compilation, `fully_shard`: the hooks of
FSDP are then outside of what is compiled or recomputed. In another order graphs break at the hooks or
parameters are gathered once more for the recomputation. On torch 2.13 other orders gave the same numbers and
the same collectives on CPUs.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
for layer in model:
    fully_shard(layer)
fully_shard(model)
model[0] = checkpoint_wrapper(model[0])
model(torch.randn(4, 8)).sum().backward()
```

## Use instead

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
model[0] = checkpoint_wrapper(model[0])
for layer in model:
    fully_shard(layer)
fully_shard(model)
model(torch.randn(4, 8)).sum().backward()
```

## Known limits

Compiling the root after it was sharded is common and is left alone. There is no fix.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- https://github.com/pytorch/torchtitan (`parallelize_llama`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, Wrapping, rule

from ._shared import sharded
from ._tensors import has_root_above

_DOES = {"compile": "compiled", "checkpoint": "wrapped for activation checkpointing"}


@rule(code="FSDP226", group="pedantic")
def check(trace: Trace) -> Iterator[Finding]:
    """Blocks that are sharded too early."""
    for wrapping in trace.of(Wrapping):
        if wrapping.by not in _DOES:
            continue
        found = sharded(trace, wrapping, wrapping.module, itself=True)
        if found is None or not has_root_above(trace, found[0]):
            continue
        shard, module = found
        yield Finding(
            at=wrapping,
            message=f"`{module.words()}` is {_DOES[wrapping.by]} after it was sharded; PyTorch's order is "
            "checkpointing, compilation, `fully_shard`",
            because=((shard.event, f"`{module.words()}` is sharded here, before"),),
        )
