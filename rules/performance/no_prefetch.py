"""Blocks that run in a fixed order are gathered one by one, each when its turn has come.

## What it does

Finds stacks of sharded blocks that a forward of the project runs in order, in a script that never tells FSDP2 the order:
neither `set_modules_to_forward_prefetch` nor `set_modules_to_backward_prefetch` nor `unshard` is called.

## Why is this bad

By default a block asks for its parameters when its own forward begins. On a GPU that overlaps with the work of the
block before as long as the CPU runs ahead of the GPU; where it does not (many small kernels, `.item()` in the
forward, offloaded parameters) the GPU waits for each block. `FSDPModule.set_modules_to_forward_prefetch` asks for
the next blocks before the forward of the current one begins: one block ahead costs no memory that the default does
not need too, two blocks ahead overlap more and hold one more block.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard


 class Model(nn.Module):
     def __init__(self):
         super().__init__()
         self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

     def forward(self, x):
         for block in self.blocks:
             x = block(x)
         return x


 dist.init_process_group("gloo")
 model = Model()
 for block in model.blocks:
     fully_shard(block)
 fully_shard(model)
+for this, following in zip(model.blocks, model.blocks[1:]):
+    this.set_modules_to_forward_prefetch([following])
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: blocks whose activations are checkpointed.
- Found: blocks in a `ModuleDict`.
- Not found: blocks in a `Sequential`.

## Known limits

Only forwards of the project that loop over the blocks, also those of a `ModuleDict`, and of models that the script runs itself: `nn.Sequential` and
blocks that are called one after the other by name are not judged. Whether the CPU falls behind shows in a profile alone, so this is advice.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`set_modules_to_forward_prefetch`)
- https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html ("Prefetching")
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_pre_forward`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Finding, Forward, Trace, Value, rule, unwrapped

from .._common.loops import loops_around, loops_at
from .._common.shared import Shard, shards, together
from .._common.tensors import has_root_above
from .._common.walks import reaches, walk_of

_TELLING = ("set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch", "unshard(")


@rule(code="FSDP508", group="perf")
def check(trace: Trace) -> Iterator[Finding]:
    """Stacks of layers without explicit prefetching."""
    if trace.truncated or any(word in s.said for s in trace.sources for word in _TELLING):
        return
    said: set[cst.CSTNode] = set()
    for shard in shards(trace):
        node = shard.event.at.node
        if node in said or not loops_around(shard.event) or not has_root_above(trace, shard):
            continue
        run = _run_in_order(trace, shard)
        if run is not None:
            said.add(node)
            yield Finding(
                at=shard.event,
                message="each of these blocks is gathered when its own forward begins; "
                "`set_modules_to_forward_prefetch` asks for the next one earlier",
                because=((run, "the blocks run in this order"),),
            )


def _run_in_order(trace: Trace, shard: Shard) -> Forward | None:
    """The call in a loop by which a forward runs one sharded block after the other."""
    stack = {
        s.module
        for s in shards(trace)
        if s.event.at.node is shard.event.at.node and together(s.guards, shard.guards)
    }
    walk = walk_of(trace, shard)
    seen: dict[cst.CSTNode, set[Value]] = {}
    for forward in trace.of(Forward):
        module = unwrapped(forward.module)
        sharded = module in stack or (walk is not None and reaches(trace, walk, module))
        if forward.how == "call" and sharded and loops_at(forward.at):
            run = seen.setdefault(forward.at.node, set())
            run.add(module)
            if len(run) > 1:
                return forward
    return None
