"""BatchNorm keeps other statistics on each rank.

## What it does

Finds BatchNorm layers with running statistics inside of a sharded model that is trained, where nothing makes
the statistics the same on all ranks. Off by default. `fsdp2lint rehearse` and `guard` tell the same of a run.

## Why is this bad

`fully_shard` shards parameters and leaves buffers to each rank. A BatchNorm normalises by the statistics of the
rank's own samples and keeps a running mean of them, so that after training every rank has other buffers: an
evaluation gives another result on each rank, and a checkpoint keeps the statistics of the rank that writes it. With
the small batches per rank that sharded training has, the statistics are noisy too. DDP broadcasts buffers before each
forward; `fully_shard`, like FSDP1, does not.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
-model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
+model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
 fully_shard(model)
 model(torch.randn(4, 8)).sum().backward()
```

Or, on GPUs, `nn.SyncBatchNorm.convert_sync_batchnorm(model)` before `fully_shard`.

## Forms

- Found: a block of convolutions, under a trainer.
- Found: a table of norms, and a class that is derived from one.
- Not found: a model of a library.
- Not found: a buffer of the project's own that follows the samples.

## Known limits

Only layers that the project builds. Silent where the script converts to `SyncBatchNorm`, where it walks over
`buffers()`, and where a layer is put into evaluation mode.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm1d.html
- https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Backward, Called, Finding, Forward, Literal, Trace, Value, rule

from .._common.shared import sharded, together

_NORMS = tuple(f"torch.nn.BatchNorm{n}d" for n in (1, 2, 3))
_HANDLED = (
    ".buffers",
    ".named_buffers",
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm",
    "torch.nn.modules.batchnorm.SyncBatchNorm.convert_sync_batchnorm",
)


@rule(code="FSDP261", group="pedantic")
def check(trace: Trace) -> Iterator[Finding]:
    """Running statistics that each rank keeps for itself."""
    said: set[Value] = set()
    if trace.truncated or next(trace.calls(*_HANDLED), None) is not None:
        return
    for forward in trace.of(Forward):
        found = sharded(trace, forward, forward.module, itself=True)
        if found is None or next(trace.after(forward, Backward), None) is None:
            continue
        shard, root = found
        norm = next((n for n in _norms(trace) if trace.inside(n.result, root)), None)
        if norm is None or root in said or not together(norm.guards, forward.guards):
            continue
        said.add(root)
        yield Finding(
            at=norm,
            message="every rank keeps running statistics of its own samples here: evaluations differ between "
            "ranks, and a checkpoint holds those of one",
            because=((shard.event, f"`{shard.module.words()}` is sharded here; buffers are not"),),
        )


def _norms(trace: Trace) -> Iterator[Called]:
    """The BatchNorm layers that keep statistics, and are never put into evaluation mode by themselves."""
    still = {c.receiver for c in trace.calls(".eval", ".requires_grad_")}
    for called in trace.calls(*_NORMS):
        kept = called.argument(4, "track_running_stats")
        if called.result not in still and not (isinstance(kept, Literal) and not kept.value):
            yield called
