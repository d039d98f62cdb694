"""Norms are sharded one by one: each is gathered by a collective of its own.

## What it does

Finds `fully_shard` of single `nn.LayerNorm`, `nn.RMSNorm` and `nn.GroupNorm`, also where a loop over `modules()`
shards them beside larger layers.

## Why is this bad

Each call makes a group that is gathered before its forward and before its backward and whose gradients are
reduced on their own. A norm has one or two vectors: their cost is almost all launch latency, and
more of them keep the GPU from the large ones. In the group of the block around it a norm costs nothing.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
-model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8))
-for layer in model:
-    fully_shard(layer)
+model = nn.Sequential(
+    nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
+)
+for block in model:
+    fully_shard(block)
 fully_shard(model)
```

## Forms

- Found: norms among the classes that a walk asks for.
- Found: the norm of each block, by name.
- Not found: a norm of the project.
- Not found: the norms of a model of Transformers.

## Known limits

How large other layers are is not judged: `fully_shard` of each `nn.Linear` can be right for very wide ones. A
norm that has another precision policy than the root has its group for that and is left alone, and so are norms
that share a group with others (`fully_shard([norm, head])`).

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import External, Finding, Trace, Value, rule

from .._common.shared import Shard, class_name, shards, together
from .._common.walks import walk_of

_NORMS = ("torch.nn.LayerNorm", "torch.nn.RMSNorm", "torch.nn.GroupNorm")
_POLICY = "mp_policy"


@rule(code="FSDP506", group="perf")
def check(trace: Trace) -> Iterator[Finding]:
    """Groups that hold nothing but a norm."""
    said: set[object] = set()
    for shard in shards(trace):
        norm = _norm(trace, shard)
        if not norm or len(shard.event.modules) > 1 or shard.event.at.node in said:
            continue
        root = _root(trace, shard)
        if root is None or shard.event.options.get(_POLICY) is not root.event.options.get(_POLICY):
            continue
        said.add(shard.event.at.node)
        yield Finding(
            at=shard.event,
            message=f"`{norm.rpartition('.')[2]}` layers are groups of their own here, each gathered and "
            "reduced by collectives for a vector or two; leave them to the block around them",
            because=((root.event, f"`{root.module.words()}`, around them, is sharded here"),),
        )


def _norm(trace: Trace, shard: Shard) -> str:
    """The class of the norms that a call shards each on its own, or nothing."""
    if class_name(shard.module) in _NORMS:
        return class_name(shard.module)
    walk = walk_of(trace, shard)
    classes: tuple[Value | str, ...] = () if walk is None else walk.classes
    named = (c.name for c in classes if isinstance(c, External))
    return next((name for name in named if name in _NORMS), "")


def _root(trace: Trace, shard: Shard) -> Shard | None:
    """The sharding of a module around one."""
    for other in shards(trace):
        if other.module is not shard.module and trace.inside(shard.module, other.module):
            if together(other.guards, shard.guards):
                return other
    return None
