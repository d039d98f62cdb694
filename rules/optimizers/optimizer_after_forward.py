"""An optimizer is built while a forward has left the root's parameters unsharded.

## What it does

Finds optimizers that are built after a forward of the sharded model with neither a `backward()` nor
a `reshard()` between.

## Why is this bad

After its forward the root keeps its parameters unsharded until the end of the backward: for that time
`model.parameters()` gives the plain, gathered tensors. An optimizer that takes them updates copies
that are thrown away; what belongs to the root's own group never trains, and nothing raises. A forward
under `no_grad` does the same.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
+optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 with torch.no_grad():
     model(torch.randn(4, 8))
-optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: an evaluation before the training, in a trainer.
- Found: groups of parameters, built between forward and backward by a helper function.
- Not found: parameters that `unshard()` has gathered.
- Not found: a forward through a method that was registered.

## Fix safety

Unsafe: the statement moves above the forward when both are in one block, all `fully_shard` calls are above
them, and nothing between them binds or changes what it reads. Look at what else was meant to happen between them.

## Known limits

Silent when the root was sharded with a `reshard_after_forward` that may be true, when a state dict is
taken or loaded or the model is moved between the two (those reshard), and for inner units that are
called alone.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`reshard_after_forward`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_post_forward`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Backward,
    Called,
    Event,
    Finding,
    Forward,
    Moved,
    OptimizerBuilt,
    Parameters,
    Resharded,
    Restored,
    StateDictTaken,
    Trace,
    Value,
    rule,
)

from .._common.fixes_moving import moved_above
from .._common.shared import line_of, overlap, sharded, shards_before, together
from .._common.tensors import keeps_after_forward

_RESHARDING: tuple[type[Event], ...] = (Backward, Resharded, StateDictTaken, Restored, Moved)


@rule(code="FSDP202", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Optimizers over parameters that a forward has left unsharded."""
    for built in trace.of(OptimizerBuilt):
        for parameters in built.over:
            forwards = list(_left_open(trace, built, parameters))
            if forwards:
                forward = forwards[0]
                said = forward.module.words()
                yield Finding(
                    at=built,
                    message=f"`{built.optimizer.words()}` takes the unsharded parameters that the "
                    f"forward of `{said}` on {line_of(forward, built)} has left: "
                    f"the ones that the root `{said}` owns are never updated",
                    because=((forward, f"`{said}` runs forward here, nothing reshards it since"),),
                    fix=moved_above(
                        built,
                        forwards,
                        [s.event for s in shards_before(trace, built)],
                        "build the optimizer above the forward",
                        "look at what else was meant to happen between the two",
                    ),
                )
                break


def _left_open(trace: Trace, built: OptimizerBuilt, parameters: Parameters) -> Iterator[Forward]:
    """The forwards after which ``parameters`` were read while the root was still unsharded, latest first."""
    taken = built.order if parameters.taken is None else parameters.taken
    for forward in trace.before(built, Forward):
        found = sharded(trace, forward, forward.module, itself=True)
        if found is None or forward.order >= taken or forward.how != "call":
            continue
        shard, module = found
        if not together(forward.guards, built.guards) or not keeps_after_forward(
            trace, shard, forward
        ):
            continue
        if overlap(trace, parameters.of, module) is None:
            continue
        if any(_between(trace, forward, taken, kind) for kind in _RESHARDING):
            continue
        if not _unseen_between(trace, forward, taken, module):
            yield forward


def _unseen_between(trace: Trace, forward: Forward, end: int, module: Value) -> bool:
    """Whether code that cannot be followed may have run a backward in the meantime."""
    return any(forward.order < e.order < end for e in trace.escapes(module)) or any(
        forward.order < c.order < end and c.name.endswith("backward") for c in trace.of(Called)
    )


def _between(trace: Trace, forward: Forward, end: int, kind: type[Event]) -> bool:
    return any(forward.order < e.order < end for e in trace.after(forward, kind))
