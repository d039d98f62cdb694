"""The optimizer's state is asked for before its first step, which then counts as the second.

## What it does

Finds `get_optimizer_state_dict` and `get_state_dict` of an Adam-like optimizer that has made no step, where the
script goes on to train on some path without loading a state into it.

## Why is this bad

To have something to give, the getter makes a step itself: with gradients of zero and a learning rate of zero. A
load undoes that, and that is what it is meant for. Without a load the optimizer's `step` stays at 1: the first
real step counts as the second. The bias correction of Adam then divides by `1 - beta ** 2` where it should by
`1 - beta`: the first update is 0.74 of what it was to be, and with the L2 `weight_decay` of Adam the
momenta hold the decay of a step that never was. Runs with and without this call do not agree.

## Example

```diff
 import os

 import torch
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters())
-weights, states = get_state_dict(model, optimizer)
 if os.path.exists("latest"):
+    weights, states = get_state_dict(model, optimizer)
     dcp.load({"model": weights, "optimizer": states}, checkpoint_id="latest")
     set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: a checkpoint before the first step.
- Found: a look at the state.
- Not found: a load that may fail.
- Not found: a step with gradients of zero that the script makes itself.

## Known limits

Silent where the script sets what is in `optimizer.state` back with `zero_()`, where the optimizer cannot be resolved, and where a number decides whether the state is taken, but for
`step % n == 0` of a loop that begins at zero. Optimizers that count no steps (SGD, RMSprop, Adagrad) lose nothing.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`get_optimizer_state_dict`)
- `torch/distributed/checkpoint/state_dict.py` (`_init_optim_state`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Backward,
    Called,
    Finding,
    Guards,
    Loaded,
    Restored,
    StateDictTaken,
    Stepped,
    Trace,
    Value,
    options,
    root,
    rule,
)

from .._common.shared import state_shard
from ._common.checkpoints import OPTIMIZER_GETTERS, counts_steps, possible_at_first, untouched


@rule(code="FSDP323", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """States that are made up and stay."""
    for taken in trace.of(StateDictTaken):
        optimizer = taken.state.of
        if taken.state.via not in OPTIMIZER_GETTERS or not counts_steps(optimizer):
            continue
        if not possible_at_first(taken.guards) or not untouched(trace, taken):
            continue
        if any(trace.before(taken, Backward)):
            continue  # its parameters may have gradients: FSDP324
        if any(_sets_back(called, optimizer) for called in trace.after(taken, Called)):
            continue
        stepped = _stepped_without_load(trace, taken)
        shard = None if stepped is None else state_shard(trace, taken, taken.state)
        if stepped is None or shard is None:
            continue
        yield Finding(
            at=taken,
            message=f"`{optimizer.words()}` has made no step, so the getter makes one to have a state: the "
            "first real step then counts as the second unless a state is loaded",
            because=((stepped, "the first step, on a path without a load"),),
        )


def _sets_back(called: Called, optimizer: Value) -> bool:
    """Whether a counter of the optimizer is set to nought: ``optimizer.state[p]["step"].zero_()``."""
    one = called.receiver
    return called.name == ".zero_" and one is not None and root(one) is optimizer


def _stepped_without_load(trace: Trace, taken: StateDictTaken) -> Stepped | None:
    """The first step after a state was taken that some path comes to without a load."""
    for stepped in trace.after(taken, Stepped):
        if not trace.concerns(stepped, taken.state.of):
            continue
        both = taken.guards.and_(stepped.guards)
        loads = [g for g in _loads(trace, taken, stepped) if not both.excludes(g)]
        return None if any(both.implies(g) for g in loads) else stepped
    return None


def _loads(trace: Trace, taken: StateDictTaken, stepped: Stepped) -> Iterator[Guards]:
    """When something is put into the optimizer, or into the state that was taken, before a step."""
    for restored in trace.after(taken, Restored):
        if restored.order < stepped.order and any(
            trace.concerns(restored, one) for one in options(taken.state.of)
        ):
            yield restored.guards
    for loaded in trace.after(taken, Loaded):
        if loaded.order < stepped.order and taken.state in loaded.states:
            yield loaded.guards
