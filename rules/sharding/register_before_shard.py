"""A forward method is registered before the module is sharded.

## What it does

Finds `register_fsdp_forward_method(module, …)` in front of the `fully_shard` call of the same module.

## Why is this bad

On a module that is not sharded yet the call does nothing, silently. The method later runs without FSDP's hooks and
computes with shards: "got mixed torch.Tensor and DTensor".

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
+fully_shard(model)
 register_fsdp_forward_method(model, "extra_repr")
-fully_shard(model)
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: the constructor of the model.
- Found: several methods in a loop.
- Not found: a model that unresolved code shards.

## Fix safety

Safe: the statement, which had no effect, moves below the `fully_shard` call when both are in one block.

## Known limits

Silent when the same method of the module is registered again after the sharding.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`register_fsdp_forward_method`)
- `torch/distributed/fsdp/_fully_shard/_fully_shard.py`
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fsdp2lint.api import Finding, Fix, Registered, Trace, Value, rule, unwrapped

from .._common.fixes_moving import moved_below
from .._common.shared import Shard, cases, line_of, shards_after, shards_before, together


@rule(code="FSDP256", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Registrations that come too early."""
    for registered in trace.of(Registered):
        found = _later(trace, registered)
        if found is None or _again(trace, registered):
            continue
        said = f"`{found.module.words()}` is sharded only on {line_of(found.event, registered)}"
        method = "this" if registered.method is None else f"registering `{registered.method}`"
        yield Finding(
            at=registered,
            message=f"{said}: {method} does nothing before, and the method will run on shards",
            because=((found.event, f"`{found.module.words()}` is sharded here, later"),),
            fix=_below(registered, found),
        )


def _later(trace: Trace, registered: Registered) -> Shard | None:
    """The sharding of the same module after its method was registered, when none came before."""
    for guards, value in cases(registered, registered.module):
        module: Value = unwrapped(value)
        if any(s.module is module for s in shards_before(trace, registered)):
            continue
        for shard in shards_after(trace, registered):
            if shard.module is module and together(shard.guards, guards):
                return shard
    return None


def _again(trace: Trace, registered: Registered) -> bool:
    """Whether the same is registered once more, later."""
    return any(
        later.module is registered.module and later.method in (registered.method, None)
        for later in trace.after(registered, Registered)
        if later.at.node is not registered.at.node
    )


def _below(registered: Registered, shard: Shard) -> Fix | None:
    """The statement below the sharding."""
    title = "register below `fully_shard`"
    fix = moved_below(registered, [shard.event], title, "")
    return None if fix is None else replace(fix, safety="safe")
