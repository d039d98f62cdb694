"""A sharded part of a model computes before the model itself has.

## What it does

Finds calls of a module that `fully_shard` was applied to, before the first forward of the sharded model
around it, when that forward comes later.

## Why is this bad

The module that is called first takes itself for the root and sets its communication up as such. When the real
root computes then, it raises RuntimeError ("FSDP state has already been lazily initialized … FSDP requires
running forward through the root module first"). Once the root has computed, its parts can be called on their
own.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
 fully_shard(model[0])
 fully_shard(model)
+model(torch.randn(4, 8)).sum().backward()
 features = model[0](torch.randn(4, 8))
-model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a trainer that tries the encoder first.
- Found: a loop over the blocks, through activation checkpointing.
- Not found: a part that was sharded and has computed before the model around it was sharded.

## Known limits

Silent when the model was handed to code that cannot be followed before, and when the order of the two is not
certain.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_lazy_init`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Forward, Trace, Value, options, rule, unwrapped

from .._common.shared import Shard, sharded, shards_before, together
from ._common.computed import computed_before


@rule(code="FSDP237", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """First forwards of parts."""
    for forward in trace.of(Forward):
        found = sharded(trace, forward, forward.module, itself=True)
        if forward.how != "call" or found is None:
            continue
        shard, part = found
        root = _root(trace, forward, shard)
        if root is None or forward.moment.stage:
            continue
        if computed_before(trace, forward, root.module):
            continue
        later = _root_computes(trace, forward, root.module)
        if later is None:
            continue
        yield Finding(
            at=forward,
            message=f"`{part.words()}` is sharded and computes before `{root.module.words()}`, the root around "
            f"it: it takes itself for the root, and `{root.module.words()}` raises RuntimeError then",
            because=(
                root.reason,
                (later, "the root computes here, later"),
            ),
        )


def _root(trace: Trace, forward: Forward, shard: Shard) -> Shard | None:
    """The outermost sharded module around a part."""
    outer: Shard | None = None
    for other in shards_before(trace, forward):
        around = other.module is not shard.module and trace.inside(shard.module, other.module)
        if around and together(other.guards, forward.guards):
            if outer is None or trace.inside(outer.module, other.module):
                outer = other
    return outer


def _root_computes(trace: Trace, forward: Forward, root: Value) -> Forward | None:
    """The first forward of the root afterwards."""
    for later in trace.after(forward, Forward):
        if later.how == "call" and together(later.guards, forward.guards):
            if any(unwrapped(m) is root for m in options(later.module)):
                return later
    return None
