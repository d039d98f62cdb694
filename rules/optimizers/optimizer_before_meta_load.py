"""An optimizer is built before a load puts other parameters into the sharded model.

## What it does

Finds optimizers that are built over a sharded model and stepped after a load that replaces its parameters:
`set_model_state_dict` of a model that is still on the meta device, and `load_state_dict(…, assign=True)`.

## Why is this bad

Parameters on the meta device cannot be copied into, so the load assigns new ones (`set_model_state_dict` does
it by itself). The optimizer keeps the old ones: nothing raises, the loss stays flat, nothing is trained.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 with torch.device("meta"):
     model = nn.Linear(8, 8)
 fully_shard(model)
-optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 state = torch.load("model.pt", mmap=True)
 options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
 set_model_state_dict(model, state, options=options)
+optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: a trainer that loads where an argument names a file.
- Found: tensors that are distributed by hand and assigned.
- Found: a model that is built empty by accelerate.
- Not found: a loop that sets each parameter anew.

## Fix safety

Unsafe: the statement moves below the load when both are in one block and nothing between them uses the
optimizer.

## Known limits

Silent when the optimizer was handed to code that cannot be followed, when `param_groups` are filled anew, and
when the model may have got memory before the load (`to_empty` keeps the parameters that the optimizer holds).

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`set_model_state_dict`)
- `torch/distributed/checkpoint/state_dict.py` (`_load_model_state_dict`: `assign`)
- `torch/nn/modules/module.py` (`load_state_dict`: `assign`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Finding,
    Literal,
    OptimizerBuilt,
    Restored,
    Stepped,
    Trace,
    Value,
    options,
    rule,
    unwrapped,
)

from .._common.fixes_moving import moved_below
from .._common.meta import built_on_meta, given_memory
from .._common.shared import line_of, overlap, sharded, together, wrapped_by


@rule(code="FSDP252", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Optimizers of parameters that a load has replaced."""
    for built in trace.of(OptimizerBuilt):
        for restored in _replacing(trace, built):
            if not _trains(trace, built, restored):
                continue
            yield Finding(
                at=built,
                message=f"`{built.optimizer.words()}` was built before the load on "
                f"{line_of(restored, built)} replaced the parameters, so it never updates the model",
                because=((restored, "new parameters are put in their place here"),),
                fix=moved_below(
                    built,
                    [restored],
                    "build the optimizer below the load",
                    "look at what else was meant to happen between the two",
                ),
            )
            break


def _replacing(trace: Trace, built: OptimizerBuilt) -> Iterator[Restored]:
    """The later loads that replace parameters of an optimizer."""
    for restored in trace.after(built, Restored):
        if restored.kind != "model" or not together(built.guards, restored.guards):
            continue
        for parameters in built.over:
            for into in options(restored.into):
                module = unwrapped(into)
                if wrapped_by(into, "ddp", "fsdp1") or sharded(trace, built, parameters.of) is None:
                    continue
                if overlap(trace, module, parameters.of) is None:
                    continue
                if _assigns(trace, restored, built, module):
                    yield restored


def _assigns(trace: Trace, restored: Restored, built: OptimizerBuilt, module: Value) -> bool:
    """Whether a load surely puts other parameters into a module."""
    if restored.via == ".load_state_dict":
        for called in trace.calls(".load_state_dict"):
            if called.at.node is restored.at.node and called.calls == restored.calls:
                given = called.argument(2, "assign")
                return isinstance(given, Literal) and given.value is True
        return False
    return (
        restored.via.endswith(".set_model_state_dict")
        and built_on_meta(trace, built, module) is not None
        and not given_memory(trace, restored, module)
    )


def _trains(trace: Trace, built: OptimizerBuilt, restored: Restored) -> bool:
    """Whether the optimizer makes a step after the load with what it holds, for all that the script shows."""
    optimizer = built.optimizer
    if any(gone.order > built.order for gone in trace.escapes(optimizer)):
        return False
    if trace.memory.fields.get(optimizer):
        return False
    rebuilt = [
        later
        for later in trace.after(restored, OptimizerBuilt)
        if any(overlap(trace, p.of, q.of) is not None for p in later.over for q in built.over)
    ]
    stepped = [s for s in trace.after(restored, Stepped) if optimizer in options(s.optimizer)]
    return bool(stepped) and not rebuilt
