"""The optimizer's whole state is gathered and written to one file, only to be read again by the same script.

## What it does

Finds `torch.save` of a full optimizer state of a sharded model to a path that the same script reads with
`torch.load` and puts back into the optimizer.

## Why is this bad

Only a resumed run needs the state of an optimizer. A full state dict gathers every tensor of it on every
rank, three tensors for each parameter with Adam, through the memory of one host into one file, and all of it is
cut into shards again at the resume. `dcp.save` writes the shards where they are, from all ranks at once, and
`dcp.load` reads them at any number of ranks.

## Example

```diff
 import os

 import torch
 import torch.distributed as dist
+import torch.distributed.checkpoint as dcp
 from torch import nn
-from torch.distributed.checkpoint.state_dict import (
-    StateDictOptions,
-    get_optimizer_state_dict,
-    set_optimizer_state_dict,
-)
+from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters())
-options = StateDictOptions(full_state_dict=True, cpu_offload=True)
-if os.path.exists("optimizer.pt"):
-    state = torch.load("optimizer.pt", mmap=True)
-    set_optimizer_state_dict(model, optimizer, optim_state_dict=state, options=options)
+if os.path.exists("optimizer/.metadata"):
+    state = {"optimizer": get_optimizer_state_dict(model, optimizer)}
+    dcp.load(state, checkpoint_id="optimizer")
+    set_optimizer_state_dict(model, optimizer, optim_state_dict=state["optimizer"])
 model(torch.randn(4, 8)).square().mean().backward()
 optimizer.step()
-state = get_optimizer_state_dict(model, optimizer, options=options)
-if dist.get_rank() == 0:
-    torch.save(state, "optimizer.pt")
+dcp.save({"optimizer": get_optimizer_state_dict(model, optimizer)}, checkpoint_id="optimizer")
```

## Forms

- Found: the two methods of a trainer.
- Found: a state beside others in one file.
- Not found: a path that is found by listing a folder.

## Known limits

Only a path that is the same value at both places is followed, not one that is found by listing a folder. A full
state of the model alone may be meant for others and is left alone. There is no fix: checkpoints that exist
would have to be read in the old form once.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
- `torch/distributed/checkpoint/state_dict.py` (`StateDictOptions`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Literal, Loaded, Restored, Saved, Trace, Value, options, rule

from .._common.shared import state_shard

_BOTH = ("optimizer", "both")


@rule(code="FSDP503", group="perf")
def check(trace: Trace) -> Iterator[Finding]:
    """Whole optimizer states that go out and come back."""
    for saved in trace.of(Saved):
        if saved.via != "torch.save" or saved.path is None:
            continue
        states = [s for s in saved.states if s.kind in _BOTH and s.full is True]
        if not any(state_shard(trace, saved, state) is not None for state in states):
            continue
        loaded = _read_again(trace, saved.path)
        if loaded is not None:
            yield Finding(
                at=saved,
                message="the whole optimizer state is gathered on every rank for a file that only a resume "
                "reads; `dcp.save` writes the shards from all ranks at once",
                because=((loaded, "it is read again here, and put back into the optimizer"),),
            )


def _read_again(trace: Trace, path: Value) -> Loaded | None:
    """The load from a path whose result goes into an optimizer."""
    for loaded in trace.of(Loaded):
        if loaded.via != "torch.load" or loaded.path is None or not _same(loaded.path, path):
            continue
        for restored in trace.of(Restored):
            if restored.kind in _BOTH and any(
                _part_of(one, loaded.result) for one in options(restored.state)
            ):
                return loaded
    return None


def _same(one: Value, other: Value) -> bool:
    if isinstance(one, Literal) and isinstance(other, Literal):
        return one.value == other.value
    return one is other


def _part_of(value: Value, whole: Value) -> bool:
    seen: Value | None = value
    while seen is not None:
        if seen is whole:
            return True
        seen = seen.owner
    return False
