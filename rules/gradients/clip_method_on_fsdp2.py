"""FSDP1's `clip_grad_norm_` method is called on a sharded model, which has no such method.

## What it does

Finds `model.clip_grad_norm_(…)` for a model that `fully_shard` was applied to.

## Why is this bad

`FSDPModule` has no `clip_grad_norm_`: the call raises AttributeError. `torch.nn.utils.clip_grad_norm_`
computes the norm over all shards.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 model(torch.randn(4, 8)).sum().backward()
-model.clip_grad_norm_(1.0)
+torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
```

## Forms

- Found: a trainer that clips where its settings ask for it.
- Found: the method of FSDP1's class, or of a compiled model.
- Not found: a branch that asks for the method first: nothing is clipped, and nothing raises.

## Fix safety

Safe: the method does not exist. The norm that comes back is a `DTensor`: `.full_tensor()` it on every
rank before it is formatted.

## Known limits

A class of the project that defines a method of this name is left alone.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Arguments, Clipped, Finding, Fix, Replace, Trace, name_for, rule

from .._common.fixes import call_of, path_text, receiver_of
from .._common.shared import sharded, wrapped_before


@rule(code="FSDP219", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Calls of the method on sharded models."""
    for clipped in trace.of(Clipped):
        found = sharded(trace, clipped, clipped.module)
        if found is None or wrapped_before(trace, clipped, found[1], "ddp", "fsdp1"):
            continue
        shard, module = found
        yield Finding(
            at=clipped,
            message=f"`{module.words()}` is sharded by `fully_shard` and has no `clip_grad_norm_`: the "
            "call raises AttributeError; use `torch.nn.utils.clip_grad_norm_`",
            because=(shard.reason,),
            fix=_utility(clipped),
        )


def _utility(clipped: Clipped) -> Fix | None:
    """``torch.nn.utils.clip_grad_norm_`` over the parameters, with the same arguments."""
    call = call_of(clipped.at)
    model = path_text(clipped.at, receiver_of(clipped.at))
    if call is None or not model:
        return None
    source = clipped.at.source
    clip = name_for(source, call, "torch.nn.utils.clip_grad_norm_")
    edits = (
        Replace(source, call.func, clip.text),
        Arguments(source, call).first(f"{model}.parameters()"),
        *clip.edits,
    )
    return Fix("clip with `torch.nn.utils`", edits, "safe")
