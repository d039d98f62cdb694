"""A model is parallelized over tensors after `fully_shard`.

## What it does

Finds `parallelize_module` of a module that `fully_shard` was applied to, or of one inside it.

## Why is this bad

Tensor parallelism distributes plain tensors over its dimension of the mesh. What `fully_shard` has sharded is a
DTensor on another dimension already: ValueError. The other order works: `fully_shard` shards DTensors further.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.device_mesh import init_device_mesh
 from torch.distributed.fsdp import fully_shard
 from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

 dist.init_process_group("gloo")
 mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
 model = nn.Linear(8, 8)
+parallelize_module(model, mesh["tp"], ColwiseParallel())
 fully_shard(model, mesh=mesh["dp"])
-parallelize_module(model, mesh["tp"], ColwiseParallel())
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a helper function with a plan.
- Found: both calls in one loop over the blocks.
- Not found: a plan that is not resolved.

## Fix safety

Unsafe: the statement (a call, the loop or the `if` around it, the call of a helper) moves above the first
`fully_shard` of what it distributes, together with the plans, meshes and imports between them that it reads.
There is no fix when the two are in different blocks, when anything between does more to the model than shard it
or hand its parameters to an optimizer, and when `fully_shard` is not given a mesh: both need slices of one.

## Known limits

Only plans that can be resolved, with `ColwiseParallel` or `RowwiseParallel` are reported.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html
- `torch/distributed/tensor/_api.py` ("Cannot distribute a DTensor")
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Fix, Trace, Wrapping, rule, unwrapped

from .._common.meshes import distributes
from .._common.shared import is_none, overlap, sharded, shards_before
from ._common.fixes_lifting import lifted


@rule(code="FSDP227", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Tensor parallelism on top of shards."""
    for wrapping in trace.of(Wrapping):
        found = sharded(trace, wrapping, wrapping.module) if wrapping.by == "tp" else None
        if found is None or not distributes(trace, wrapping):
            continue
        shard, module = found
        yield Finding(
            at=wrapping,
            message=f"`parallelize_module({module.words()})` finds parameters that `fully_shard` has "
            "distributed already: ValueError; parallelize first, then shard",
            because=(shard.reason,),
            fix=_first(trace, wrapping),
        )


def _first(trace: Trace, wrapping: Wrapping) -> Fix | None:
    """The statement above all that shards what it distributes."""
    same = [w for w in trace.of(Wrapping) if w.at.node is wrapping.at.node]
    found = [
        shard.event
        for one in same
        for shard in shards_before(trace, one)
        if overlap(trace, unwrapped(one.module), shard.module) is not None
    ]
    if any(is_none(event.options.get("mesh")) for event in found):
        return (
            None  # the default mesh of `fully_shard` has no parent in common with that of the plan
        )
    return lifted(
        trace,
        wrapping,
        found,
        "parallelize over tensors first",
        "look at what else was meant to happen between the two",
    )
