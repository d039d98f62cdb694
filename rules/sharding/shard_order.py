"""A module is sharded before the modules inside it.

## What it does

Finds `fully_shard` calls on a module whose parent was sharded already.

## Why is this bad

A call of `fully_shard` makes one group of all parameters below the module that are in no group yet, so it
must go from the inside out. In the other order the parent's group has taken the child's parameters: "Invariant
encountered: value was None", "overlapping meshes", or groups that are not what was meant.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
-fully_shard(model)
 for layer in model:
     fully_shard(layer)
+fully_shard(model)
```

## Forms

- Found: the two calls are in two functions.
- Found: `modules()`, which gives a module before those inside it.
- Not found: a function that calls itself for the children.

## Fix safety

Unsafe: the parent's call moves below the last of its children's when all are in one block and nothing
between them asks for the sharded parent.

## Known limits

A loop over `modules()` counts only when the parent's sharding surely comes first. Children that were hung
into the parent after its sharding are left alone.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html ("call it bottom-up")
- `torch/distributed/fsdp/_fully_shard/_fully_shard.py` (`fully_shard`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Finding, Fix, Layout, Rewrite, Trace, Value, rule

from .._common.fixes import once
from .._common.fixes_moving import moved_below
from .._common.shared import Shard, hung_later, shards, shards_after, shards_before, together
from .._common.walks import reached, walk_of


@rule(code="FSDP207", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Children that are sharded after their parents."""
    for shard in shards(trace):
        parent = _sharded_parent(trace, shard)
        if parent is not None:
            yield Finding(
                at=shard.event,
                message=f"`{shard.module.words()}` is sharded after `{parent.module.words()}`, which "
                "holds it and whose group has taken its parameters already",
                because=((parent.event, f"`{parent.module.words()}` is sharded here, first"),),
                fix=_below(trace, parent),
            )
            continue
        nested = _outside_in(trace, shard)
        if nested is not None:
            outer, inner = nested
            yield Finding(
                at=shard.event,
                message=f"this loop goes from the outside in: it shards `{outer.words()}` before "
                f"`{inner.words()}`, which is inside it",
                fix=_backwards(shard),
            )


def _sharded_parent(trace: Trace, shard: Shard) -> Shard | None:
    """The sharding of a module around this one that came first."""
    around = trace.around(shard.module)
    before = shards_before(trace, shard.event, lambda s: s.module in around)
    earlier = [s for s in before if together(s.guards, shard.guards)]
    if any(s.module is shard.module for s in earlier):
        return None
    for one in earlier:
        if one.event is shard.event or "ignored_params" in one.event.options or one.event.open:
            continue
        if not hung_later(trace, one.event, shard.module):
            return one
    return None


def _outside_in(trace: Trace, shard: Shard) -> tuple[Value, Value] | None:
    """Two modules, one inside the other, that a walk in pre-order shards."""
    walk = walk_of(trace, shard)
    if walk is None or walk.inside_out or not walk.deep:
        return None
    found = list(reached(trace, walk))
    for outer in found:
        for inner in found:
            if inner is not outer and trace.inside(inner, outer):
                return outer, inner
    return None


def _below(trace: Trace, parent: Shard) -> Fix | None:
    """The parent's call below the last of those that shard what is inside it."""
    inner = [
        s.event
        for s in shards_after(trace, parent.event)
        if s.module is not parent.module and trace.inside(s.module, parent.module)
    ]
    if not once(trace, parent):
        return None
    return moved_below(
        parent.event,
        inner,
        "shard the children first",
        "look at what else was meant to happen between the two",
    )


def _backwards(shard: Shard) -> Fix | None:
    """The loop over ``modules()`` in reversed order."""
    site = shard.event.at
    for around in Layout.of(site.source).ancestors(site.node):
        if isinstance(around, cst.For):
            walked = around.iter
            if not isinstance(walked, cst.Call) or not isinstance(walked.func, cst.Attribute):
                return None
            edit = Rewrite(site.source, walked, lambda new: f"reversed(list({new.text}))")
            return Fix(
                "go from the inside out", (edit,), "unsafe", "the order of all else in the loop"
            )
    return None
