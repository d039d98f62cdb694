"""An optimizer is built before `fully_shard` replaces the parameters that it holds.

## What it does

Finds optimizers that are built on a model's parameters before one of the `fully_shard` calls that
apply to that model, to a part of it, or to a model around it; also those that a function is handed
beside the model that it then shards.

## Why is this bad

`fully_shard` puts new `DTensor` parameters in the place of the old ones. The optimizer keeps the old
ones, whose gradients stay None: nothing raises, the loss stays flat, nothing is trained. FSDP1 with
`use_orig_params=True` tolerated this order.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
+fully_shard(model)
 optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
-fully_shard(model)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: a helper function that builds the optimizer.
- Found: groups of parameters, kept by an object.
- Found: a helper function that builds the optimizers of two models.
- Not found: an optimizer that code outside of the project may have rebuilt.

## Fix safety

Unsafe: the statement moves below the last `fully_shard` call when both are in one block and nothing
between them uses the optimizer. Look at what else was meant to happen between them.

## Known limits

Silent when the optimizer's `param_groups` are filled anew after the sharding, when on every path code that cannot be
followed gets the optimizer before it steps (a hook that a setting may leave out is not on every path), when it is
never stepped and another one is built, and when the two happen in methods that only unseen code calls.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`FSDPParam._setattr_on_modules`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Finding,
    Optimizer,
    OptimizerBuilt,
    OptimizerReceived,
    Stepped,
    Trace,
    options,
    parts_along,
    root,
    rule,
)

from .._common.fixes_moving import moved_below
from .._common.meta import ways_around
from .._common.shared import (
    Shard,
    leaves_out,
    leftover,
    line_of,
    overlap,
    shards_after,
    shards_before,
    together,
)


@rule(code="FSDP201", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Optimizers that hold what a later ``fully_shard`` replaces."""
    yield from _handed_over(trace)
    for built in trace.of(OptimizerBuilt):
        replacing = [s for s in _replacing(trace, built) if not _harmless(trace, built, s)]
        if replacing:
            whole = [s for s in replacing if any(s.module is p.of for p in built.over)]
            shard = (*whole, *replacing)[0]
            yield Finding(
                at=built,
                message=f"`{built.optimizer.words()}` was built before "
                f"`fully_shard({shard.module.words()})` on {line_of(shard.event, built)} replaced the "
                "parameters, so it never updates the model",
                because=((shard.event, f"`{shard.module.words()}` is sharded here, later"),),
                fix=moved_below(
                    built,
                    [s.event for s in replacing],
                    "build the optimizer below the last `fully_shard`",
                    "look at what else was meant to happen between the two",
                ),
            )


def _handed_over(trace: Trace) -> Iterator[Finding]:
    """Optimizers that come in as arguments, beside a model that is sharded only then."""
    for received in trace.of(OptimizerReceived):
        optimizer = received.optimizer
        if optimizer in trace.memory.out or _refilled(trace, optimizer):
            continue
        if not any(optimizer in options(s.optimizer) for s in trace.of(Stepped)):
            continue
        for shard in shards_after(trace, received):
            if root(shard.module) not in received.beside or trace.of(OptimizerBuilt):
                continue
            yield Finding(
                at=received,
                message=f"`{optimizer.words()}` was built before `fully_shard({shard.module.words()})` on "
                f"{line_of(shard.event, received)}: it holds parameters that this call replaces and trains "
                "nothing of them",
                because=((shard.event, f"`{shard.module.words()}` is sharded here, later"),),
            )
            break


def _replacing(trace: Trace, built: OptimizerBuilt) -> Iterator[Shard]:
    """The later shardings that replace parameters of an optimizer."""
    for shard in shards_after(trace, built):
        for parameters in built.over:
            inner = overlap(trace, shard.module, parameters.of)
            if inner is None or not together(shard.guards, built.guards):
                continue
            if leaves_out(trace, shard, parameters.of):
                continue
            earlier = [s for s in shards_before(trace, built) if trace.inside(s.module, inner)]
            done = any(trace.inside(inner, s.module) for s in shards_before(trace, built))
            if not done and leftover(trace, inner, earlier):
                yield shard
                break


def _harmless(trace: Trace, built: OptimizerBuilt, shard: Shard) -> bool:
    """Whether the optimizer gets the new parameters, is put aside for another one, or surely never steps."""
    optimizer = built.optimizer
    if (
        trace.never(Stepped, optimizer)
        or _refilled(trace, optimizer)
        or _handed_away(trace, built, shard)
        or _made_again(trace, built, shard)
    ):
        return True
    for stepped in trace.after(shard.event, Stepped):
        if optimizer in options(stepped.optimizer):
            return False
    return any(
        overlap(trace, parameters.of, shard.module) is not None
        for rebuilt in trace.after(shard.event, OptimizerBuilt)
        if rebuilt.optimizer is not optimizer
        for parameters in rebuilt.over
    )


def _made_again(trace: Trace, built: OptimizerBuilt, shard: Shard) -> bool:
    """Whether the call that built the optimizer builds another one whenever the model was sharded.

    One of another model does not count where the first optimizer goes on to make its own steps.
    """
    both = shard.guards.and_(built.guards)
    steps = any(
        list(options(stepped.optimizer)) == [built.optimizer]
        for stepped in trace.after(shard.event, Stepped)
    )
    return any(
        again.at.node is built.at.node
        and both.implies(again.guards)
        and not (steps and all(overlap(trace, p.of, shard.module) is None for p in again.over))
        for again in trace.after(shard.event, OptimizerBuilt)
    )


def _handed_away(trace: Trace, built: OptimizerBuilt, shard: Shard) -> bool:
    """Whether code that cannot be followed got the optimizer before it stepped, on every path: it may have put the new
    parameters in.
    """
    both = shard.guards.and_(built.guards)
    away = [
        gone
        for gone in trace.escapes(built.optimizer)
        if built.order < gone.order and gone.to != "its caller"
    ]
    if not away:
        return False
    for stepped in trace.after(shard.event, Stepped):
        if built.optimizer not in options(stepped.optimizer):
            continue
        before = [gone for gone in away if gone.order < stepped.order]
        if both.implies(stepped.guards):
            return bool(before) and not ways_around(trace, stepped, before, shard.module, both)
        if together(both, stepped.guards) and before:
            if ways_around(trace, stepped, before, shard.module, both):
                return False
    return True


def _refilled(trace: Trace, optimizer: Optimizer) -> bool:
    """Whether the script writes into the optimizer's ``param_groups``."""
    groups = optimizer.part(".param_groups")
    if any(called.receiver is groups for called in trace.calls(".clear")):
        return True
    if ".param_groups" in trace.memory.fields.get(optimizer, ()):
        return True
    return any(p is groups for owner in trace.written("['params']") for p in parts_along(owner))
