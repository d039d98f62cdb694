"""A list of parameters is taken before sharding and used after it.

## What it does

Finds lists and dictionaries of a model's parameters that are made before `fully_shard` replaces them and
used afterwards: clipped, averaged, or given to an optimizer.

## Why is this bad

The list holds the old tensors. Their `grad` stays None and their values never change: the clipped norm is
0, the average is that of dead tensors, the optimizer trains nothing. Nothing raises.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
parameters = list(model.parameters())
fully_shard(model)
model(torch.randn(4, 8)).sum().backward()
torch.nn.utils.clip_grad_norm_(parameters, 1.0)
```

## Use instead

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
parameters = list(model.parameters())
model(torch.randn(4, 8)).sum().backward()
torch.nn.utils.clip_grad_norm_(parameters, 1.0)
```

## Known limits

An optimizer that is built before the sharding is FSDP201. Single parameters that are kept by name are not
followed.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`FSDPParam._setattr_on_modules`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Clipped,
    Event,
    Finding,
    OptimizerBuilt,
    Parameters,
    ParametersUsed,
    Trace,
    rule,
)

from ._shared import Shard, leftover, overlap, shards_before, together


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
        if leftover(trace, inner, [s for s in earlier if trace.inside(s.module, inner)]):
            return shard
    return None
