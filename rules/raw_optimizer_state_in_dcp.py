"""`optimizer.state_dict()` is handed to DCP as it is.

## What it does

Finds `dcp.save`, `dcp.async_save` and `dcp.load` of the optimizer's own `state_dict()` for a sharded model.

## Why is this bad

DCP matches entries by name. A raw optimizer state is keyed by numbers, and it is empty before the first step:
`dcp.load` then fills nothing and the run continues with fresh moments, or fails with missing keys.
`get_optimizer_state_dict` uses parameter names and creates the state before a load.

## Example

```python
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
dcp.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, checkpoint_id="step_1")
```

## Use instead

```python
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
model_state, optimizer_state = get_state_dict(model, optimizer)
dcp.save({"model": model_state, "optim": optimizer_state}, checkpoint_id="step_1")
```

## Fix safety

Unsafe: the same state under parameter names, when the model has a name in the same function. What is loaded must
go back through `set_optimizer_state_dict`, and old checkpoints have the old keys.

## Known limits

Silent when the optimizer's model is not known to be sharded.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`get_optimizer_state_dict`)
- https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Event,
    Finding,
    Fix,
    Loaded,
    OptimizerBuilt,
    Replace,
    Saved,
    StateDict,
    StateDictTaken,
    Trace,
    name_for,
    rule,
)

from ._fixes import call_of, first_argument, path_text, receiver_of
from ._shared import DCP, changed, state_shard


@rule(code="FSDP302", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Raw optimizer states that go through DCP."""
    for event, via, states in _through_dcp(trace):
        for state in states:
            raw = state.kind == "optimizer" and state.via in ("state_dict", ".state_dict")
            shard = state_shard(trace, event, state) if raw else None
            if shard is None or changed(trace, state, event):
                continue
            said = state.of.words()
            yield Finding(
                at=event,
                message=f"`{via.rpartition('.')[2]}` gets `{said}.state_dict()`, whose keys are numbers "
                f"and which is empty before the first step; use `get_optimizer_state_dict`",
                because=((shard.event, f"`{shard.module.words()}` is sharded here"),),
                fix=_by_name(trace, state),
            )
            break


def _through_dcp(trace: Trace) -> Iterator[tuple[Event, str, tuple[StateDict, ...]]]:
    for saved in trace.of(Saved):
        if saved.via.startswith(DCP):
            yield saved, saved.via, saved.states
    for loaded in trace.of(Loaded):
        if loaded.via.startswith(DCP):
            yield loaded, loaded.via, loaded.states


def _by_name(trace: Trace, state: StateDict) -> Fix | None:
    """``get_optimizer_state_dict(model, optimizer)``, where the model has a name in the same function."""
    taken = next((e for e in trace.of(StateDictTaken) if e.state is state), None)
    built = next((e for e in trace.of(OptimizerBuilt) if e.optimizer is state.of), None)
    if taken is None or built is None or taken.calls != built.calls or len(built.over) != 1:
        return None
    call = call_of(taken.at)
    optimizer = path_text(taken.at, receiver_of(taken.at))
    model = _model_name(built)
    if call is None or not optimizer or not model:
        return None
    get = name_for(
        taken.at.source, call, "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict"
    )
    edit = Replace(taken.at.source, call, f"{get.text}({model}, {optimizer})")
    note = "the state must go back through `set_optimizer_state_dict`"
    return Fix("take the state under parameter names", (edit, *get.edits), "unsafe", note)


def _model_name(built: OptimizerBuilt) -> str:
    """What the script calls the model in ``SGD(model.parameters(), …)``."""
    call = call_of(built.at)
    given = None if call is None else first_argument(call)
    if not isinstance(given, cst.Call) or not isinstance(given.func, cst.Attribute):
        return ""
    return path_text(built.at, given.func.value)
