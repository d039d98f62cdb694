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

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
+model[0] = checkpoint_wrapper(model[0])
 for layer in model:
     fully_shard(layer)
 fully_shard(model)
-model[0] = checkpoint_wrapper(model[0])
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: both in one loop over the blocks.
- Found: a helper function that checkpoints by class.
- Not found: unresolved code that wraps the blocks.

## Fix safety

Unsafe: the statement (a call, the loop or the `if` around it, the call of a helper) moves above the `fully_shard`
of the blocks, together with the settings between them that it reads. Where a loop shards each block and replaces
it by its wrapper at once, `fully_shard` gets the wrapper. There is no fix when the two are in different blocks,
when the sharding would still find the unwrapped block (a list that was made before, `isinstance` tests), and when
anything between does more to the model than shard it or hand its parameters to an optimizer.

## Known limits

Compiling the root after it was sharded is common and is left alone. What `check_fn` chooses is not computed: the
call counts when any part of its model was sharded before.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- https://github.com/pytorch/torchtitan (`parallelize_llama`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Fix, Trace, Wrapping, rule, unwrapped

from ..._common.shared import Shard, overlap, sharded, shards_before, together
from ..._common.tensors import has_root_above
from .._common.fixes_lifting import lifted
from .wrapping import wrappers_sharded

_INSIDE = (
    "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.apply_activation_checkpointing"
)
"""Wraps what `check_fn` or a policy chooses below the module that it is given."""
_DOES = {"compile": "compiled", "checkpoint": "wrapped for activation checkpointing"}
_FIRST = {"compile": "compile", "checkpoint": "wrap for activation checkpointing"}


@rule(code="FSDP226", group="pedantic")
def check(trace: Trace) -> Iterator[Finding]:
    """Blocks that are sharded too early."""
    for wrapping in trace.of(Wrapping):
        if wrapping.by not in _DOES:
            continue
        shard = _sharded_unit(trace, wrapping)
        if shard is None:
            continue
        said = shard.module.words()
        yield Finding(
            at=wrapping,
            message=f"`{said}` is {_DOES[wrapping.by]} after it was sharded; PyTorch's order is "
            "checkpointing, compilation, `fully_shard`",
            because=((shard.event, f"`{said}` is sharded here, before"),),
            fix=_first(trace, wrapping),
        )


def _sharded_unit(trace: Trace, wrapping: Wrapping) -> Shard | None:
    """The sharding that came before, of a module that is wrapped and is no root."""
    found = sharded(trace, wrapping, wrapping.module, itself=True)
    if found is not None and has_root_above(trace, found[0]):
        return found[0]
    if not any(called.at.node is wrapping.at.node for called in trace.calls(_INSIDE)):
        return None
    whole = unwrapped(wrapping.module)
    for shard in shards_before(trace, wrapping):
        inside = shard.module is not whole and trace.inside(shard.module, whole)
        if inside and together(shard.guards, wrapping.guards):
            return shard
    return None


def _first(trace: Trace, wrapping: Wrapping) -> Fix | None:
    """The statement above all that shards what it wraps."""
    pairs = [
        (one, shard)
        for one in trace.of(Wrapping)
        if one.at.node is wrapping.at.node
        for shard in shards_before(trace, one)
        if overlap(trace, unwrapped(one.module), shard.module) is not None
    ]
    edits = wrappers_sharded(trace, pairs)
    if edits is None:
        return None
    return lifted(
        trace,
        wrapping,
        [shard.event for _, shard in pairs],
        f"{_FIRST[wrapping.by]} first",
        "look at what else was meant to happen between the two",
        edits,
    )
