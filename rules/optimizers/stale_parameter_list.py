"""A list of parameters is taken before sharding and used after it.

## What it does

Finds lists and dictionaries of a model's parameters that are made before `fully_shard` replaces them and
used afterwards: clipped, averaged, or given to an optimizer.

## Why is this bad

The list holds the old tensors. Their `grad` stays None and their values never change: the clipped norm is
0, the average is that of dead tensors, the optimizer trains nothing. Nothing raises.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
+fully_shard(model)
 parameters = list(model.parameters())
-fully_shard(model)
 model(torch.randn(4, 8)).sum().backward()
 torch.nn.utils.clip_grad_norm_(parameters, 1.0)
```

## Forms

- Found: a trainer that keeps what is to be trained.
- Found: a moving average that follows a list of the old parameters.
- Found: a function that the list is bound to.
- Not found: a single parameter that is kept by its name.

## Fix safety

Unsafe: a statement that binds one name to a list or a comprehension over the parameters moves below the last
`fully_shard` call of its block, when nothing between uses the name. Look at what else was meant to happen between
them.

## Known limits

There is no fix where the parameters are gathered by a helper or used before the sharding too. An optimizer that is built before the sharding is FSDP201. Single parameters that are kept by name are not
followed.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`FSDPParam._setattr_on_modules`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Clipped,
    Event,
    Finding,
    Fix,
    Layout,
    OptimizerBuilt,
    Parameters,
    ParametersUsed,
    Trace,
    rule,
    unwrapped,
)

from .._common.fixes_moving import moved_beyond
from .._common.shared import Shard, leaves_out, leftover, overlap, shards_before, together


@rule(code="FSDP220", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Parameters that are older than the sharding of their module."""
    for event, used in _uses(trace):
        for parameters in used:
            shard = _replacing(trace, event, parameters)
            if shard is None:
                continue
            yield Finding(
                at=event,
                message=f"these parameters of `{parameters.of.words()}` were taken before "
                f"`fully_shard({shard.module.words()})` replaced them: they are never updated",
                because=((shard.event, f"`{shard.module.words()}` is sharded here, after that"),),
                fix=_taken_later(trace, event, parameters),
            )
            break


def _uses(trace: Trace) -> Iterator[tuple[Event, tuple[Parameters, ...]]]:
    for clipped in trace.of(Clipped):
        yield clipped, clipped.parameters
    for used in trace.of(ParametersUsed):
        yield used, used.parameters
    for built in trace.of(OptimizerBuilt):
        yield built, built.over


def _replacing(trace: Trace, event: Event, parameters: Parameters) -> Shard | None:
    """The sharding between the taking of parameters and their use that replaced them."""
    taken = parameters.taken
    if taken is None:
        return None
    before = list(shards_before(trace, event))
    earlier = [s for s in before if s.order < taken]
    for shard in before:
        if shard.order < taken or not together(shard.guards, event.guards):
            continue
        inner = overlap(trace, shard.module, parameters.of)
        if inner is None or any(trace.inside(inner, s.module) for s in earlier):
            continue
        if leaves_out(trace, shard, parameters.of):
            continue
        if leftover(trace, inner, [s for s in earlier if trace.inside(s.module, inner)]):
            return shard
    return None


_GATHERING = ("list", "tuple", "dict", "set", "sorted")
_READING = (".parameters", ".named_parameters")


def _taken_later(trace: Trace, event: Event, parameters: Parameters) -> Fix | None:
    """Take the parameters below the last sharding instead, where one statement takes them."""
    taken = parameters.taken
    reads = [
        c
        for c in trace.calls(*_READING)
        if taken is not None and c.order <= taken and c.receiver is not None
        if unwrapped(c.receiver) is unwrapped(parameters.of)
    ]
    statement = _statement(reads[-1]) if reads else None
    if taken is None or statement is None:
        return None
    later = [
        s.event
        for s in shards_before(trace, event)
        if s.order > taken and overlap(trace, s.module, parameters.of) is not None
    ]
    return moved_beyond(
        reads[-1],
        statement,
        later,
        "take the parameters below the last `fully_shard`",
        "look at what else was meant to happen between the two",
    )


def _statement(read: Called) -> cst.Assign | None:
    """``name = list(model.parameters())``, or a comprehension over the parameters."""
    layout = Layout.of(read.at.source)
    around = list(layout.ancestors(read.at.node))
    statement = next((a for a in around if isinstance(a, cst.Assign)), None)
    if statement is None or len(statement.targets) != 1:
        return None
    value = statement.value
    plain = (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Name)
        and value.func.value in _GATHERING
        and value.args[0].value is read.at.node
    )
    gathered = (
        isinstance(value, cst.ListComp | cst.SetComp | cst.DictComp)
        and value.for_in.iter is read.at.node
    )
    named = isinstance(statement.targets[0].target, cst.Name)
    return statement if named and (plain or gathered) else None
