"""Training stops while a checkpoint is written.

## What it does

Finds `dcp.save`, and `torch.save` of a full state dict that all ranks gather for it, in the innermost loop
around the step of an optimizer.

## Why is this bad

`dcp.save` returns when the last rank has written its files, and `torch.save` when the first has; until then no
GPU computes. `dcp.async_save` copies the shards to the host and writes them in the background, so that
training waits for the copy alone, seconds instead of minutes for large models.

## Example

```diff
 import torch
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
+saving = None
+in_background = dist.new_group(backend="gloo")
 for step in range(1, 1001):
     model(torch.randn(4, 8)).square().mean().backward()
     optimizer.step()
     optimizer.zero_grad()
     if step % 100 == 0:
-        dcp.save({"model": model.state_dict()}, checkpoint_id=f"step_{step}")
+        if saving is not None:
+            saving.result()
+        saving = dcp.async_save(
+            {"model": model.state_dict()}, checkpoint_id=f"step_{step}", process_group=in_background
+        )
+if saving is not None:
+    saving.result()
```

## Forms

- Found: a method of a trainer that saves.
- Found: a full state dict.
- Not found: a step in unresolved code.
- Not found: a save in the background that is waited for at once.

## Known limits

There is no fix: a save in the background needs a process group of its own, must be waited for before the next
one and at the end, and needs the memory for a copy on the host. Saves at the end of an epoch, before the loop
is left and in one single step are fine. A loop whose step happens in code that cannot be followed is not seen.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`async_save`)
- https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Guard, Literal, Part, Saved, Trace, rule

from .._common.loops import each_step, leaves_after, step_loop
from .._common.shared import DCP, state_shard


@rule(code="FSDP502", group="perf")
def check(trace: Trace) -> Iterator[Finding]:
    """Saves that training waits for."""
    for saved in trace.of(Saved):
        if saved.via not in (f"{DCP}save", "torch.save"):
            continue
        stepped = each_step(trace, saved)
        if stepped is None or _is_the_last(trace, saved) or not _of_shards(trace, saved):
            continue
        what = "`dcp.save`" if saved.via != "torch.save" else "`torch.save` of the gathered state"
        yield Finding(
            at=saved,
            message=f"{what} holds up the loop that trains until all is written; `dcp.async_save` "
            "writes the shards while it goes on",
            because=((stepped, "the optimizer makes its step here, in the same loop"),),
        )


def _of_shards(trace: Trace, saved: Saved) -> bool:
    """Whether the state of a sharded model is saved, and by `torch.save` only what all ranks gather first."""
    return any(
        (state.full is True or saved.via != "torch.save")
        and state_shard(trace, saved, state) is not None
        for state in saved.states
    )


def _is_the_last(trace: Trace, saved: Saved) -> bool:
    """Whether the loop ends with this save, or it happens in one step only."""
    loop = step_loop(trace, saved)
    return any(_once(guard) for guard in saved.guards) or (
        loop is not None and leaves_after(saved, loop)
    )


def _once(guard: Guard) -> bool:
    """`step == last`: a comparison with one number, of what is no remainder."""
    test = guard.test
    if not (guard.taken and isinstance(test, Part) and test.operation == "=="):
        return False
    return test.owner.operation != "%" and not isinstance(test.owner, Literal)
