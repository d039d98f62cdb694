"""FSDP1's gradient scaler is used with a sharded model.

## What it does

Finds `ShardedGradScaler` in a script whose models are sharded by `fully_shard` and not wrapped by FSDP1.

## Why is this bad

The class was made for FSDP1's flat local gradients. Gradients of `fully_shard` are DTensors, for which
`torch.amp.GradScaler` finds infinities on all ranks by itself; the old class reduces them once more and makes
PyTorch warn about it.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard
-from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
-scaler = ShardedGradScaler(init_scale=1024.0)
+scaler = torch.amp.GradScaler(init_scale=1024.0)
 scaler.scale(model(torch.randn(4, 8)).sum()).backward()
 scaler.step(optimizer)
```

## Forms

- Found: a scaler of a trainer, made before the model is sharded.
- Found: a table of classes.
- Not found: a class that is derived from it.

## Fix safety

Safe: `torch.amp.GradScaler` with the same arguments but `process_group`, which it does not need.

## Known limits

Silent when the script can wrap a model by FSDP1 on the same path.

## References

- https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
- `torch/distributed/fsdp/sharded_grad_scaler.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Arguments, Called, Finding, Fix, Replace, Trace, Wrapping, name_for, rule

from .._common.fixes import call_of
from .._common.shared import Shard, shards, together

_SCALER = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"


@rule(code="FSDP228", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """FSDP1's scalers beside sharded models."""
    for made in trace.calls(_SCALER):
        shard = _beside(trace, made)
        if shard is None or _wraps_too(trace, made):
            continue
        yield Finding(
            at=made,
            message="`ShardedGradScaler` is FSDP1's; for what `fully_shard` has sharded "
            "`torch.amp.GradScaler` is enough",
            because=(shard.reason,),
            fix=_ordinary(made),
        )


def _beside(trace: Trace, made: Called) -> Shard | None:
    """A sharding on the same path."""
    return next((s for s in shards(trace) if together(s.guards, made.guards)), None)


def _wraps_too(trace: Trace, made: Called) -> bool:
    """Whether a model may be wrapped by FSDP1 on the same path."""
    return any(w.by == "fsdp1" and not w.guards.excludes(made.guards) for w in trace.of(Wrapping))


def _ordinary(made: Called) -> Fix | None:
    """``torch.amp.GradScaler`` in its place."""
    call = call_of(made.at)
    if call is None or any(a.star or a.keyword is None for a in call.args):
        return None
    source = made.at.source
    scaler = name_for(source, call, "torch.amp.GradScaler")
    arguments = Arguments(source, call)
    edits = [Replace(source, call.func, scaler.text), *scaler.edits]
    if arguments.has("process_group"):
        edits.append(arguments.remove("process_group"))
    return Fix("use `torch.amp.GradScaler`", tuple(edits), "safe")
