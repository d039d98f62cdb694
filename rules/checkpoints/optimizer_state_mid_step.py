"""The optimizer's state is asked for between the first backward and the first step, and is empty.

## What it does

Finds `get_optimizer_state_dict` and `get_state_dict` of an optimizer that has made no step, at a moment when its
parameters have gradients.

## Why is this bad

An optimizer has no state before its first step. The getters make one up, but not where gradients lie ready: a
step would use them. They then return a state that has hyperparameters and nothing else, without a word. A
checkpoint of it cannot be resumed: `dcp.load` into the state of another run of the same script finds none
of its keys and raises `CheckpointException`.

## Example

```diff
 import torch
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters())
 model(torch.randn(4, 8)).sum().backward()
+optimizer.step()
 states = get_optimizer_state_dict(model, optimizer)
-optimizer.step()
 dcp.save({"optimizer": states}, checkpoint_id="step_1")
```

## Forms

- Found: a trainer that saves between backward and step.
- Found: an object of which DCP asks the state.
- Not found: a save whose step is found by a comparison.
- Not found: a handler of a signal, which may come at any time.

## Fix safety

Unsafe: the statement moves below the step, so the state is that of one step later. There is a fix where both
are in one block and nothing between them uses the state.

## Known limits

Silent where the optimizer cannot be resolved, and where a number decides whether the state is taken, but for
`step % n == 0` of a loop that begins at zero.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`get_optimizer_state_dict`)
- `torch/distributed/checkpoint/state_dict.py` (`_init_optim_state`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Backward,
    Called,
    External,
    Finding,
    Fix,
    Forward,
    Literal,
    Optimizer,
    StateDictTaken,
    Stepped,
    Trace,
    Written,
    rule,
    unwrapped,
)

from .._common.fixes_moving import moved_below
from .._common.shared import overlap, state_shard, together
from ._common.checkpoints import OPTIMIZER_GETTERS, possible_at_first, untouched

_WITH_STATE = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adadelta", "RMSprop", "Rprop", "ASGD")
_FORGETTING = (".zero_grad",)


@rule(code="FSDP324", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """States that the getters cannot make up."""
    for taken in trace.of(StateDictTaken):
        optimizer = taken.state.of
        if taken.state.via not in OPTIMIZER_GETTERS or not isinstance(optimizer, Optimizer):
            continue
        if not _has_state(trace, optimizer) or not possible_at_first(taken.guards):
            continue
        backward = _gradients(trace, taken, optimizer) if untouched(trace, taken) else None
        shard = None if backward is None else state_shard(trace, taken, taken.state)
        if backward is None or shard is None:
            continue
        yield Finding(
            at=taken,
            message=f"`{optimizer.words()}` has made no step and its parameters have gradients: its state "
            "is empty here; take it after the step",
            because=((backward, "the gradients come from here"),),
            fix=_after_step(trace, taken),
        )


def _has_state(trace: Trace, optimizer: Optimizer) -> bool:
    """Whether an optimizer of PyTorch has a state after its first step, and none before."""
    if not isinstance(optimizer.cls, External):
        return False
    home, _, name = optimizer.cls.name.rpartition(".")
    if home != "torch.optim" or name != "SGD":
        return home == "torch.optim" and name in _WITH_STATE
    built = next((c for c in trace.calls(optimizer.cls.name) if c.result is optimizer), None)
    momentum = None if built is None else built.argument(2, "momentum")
    return isinstance(momentum, Literal) and bool(momentum.value)


def _gradients(trace: Trace, taken: StateDictTaken, optimizer: Optimizer) -> Backward | None:
    """The backward whose gradients the optimizer's parameters surely still have."""
    for backward in trace.before(taken, Backward):
        if not together(backward.guards, taken.guards) or _forgotten(trace, backward, taken):
            return None
        return backward if _computed(trace, backward, optimizer) else None
    return None


def _computed(trace: Trace, backward: Backward, optimizer: Optimizer) -> bool:
    """Whether the optimizer's model computed before a backward."""
    return any(
        overlap(trace, unwrapped(forward.module), unwrapped(over.of)) is not None
        for forward in trace.before(backward, Forward)
        for over in optimizer.over
    )


def _forgotten(trace: Trace, backward: Backward, taken: StateDictTaken) -> bool:
    """Whether gradients may have been dropped since."""
    written = any(
        w.name == "grad" and w.order < taken.order for w in trace.after(backward, Written)
    )
    return written or any(
        called.name in _FORGETTING and called.order < taken.order
        for called in trace.after(backward, Called)
    )


def _after_step(trace: Trace, taken: StateDictTaken) -> Fix | None:
    """The state taken below the first step that follows."""
    for stepped in trace.after(taken, Stepped):
        if trace.concerns(stepped, taken.state.of):
            return moved_below(
                taken,
                [stepped],
                "take the state after the step",
                "the state is then that of one step later",
            )
    return None
