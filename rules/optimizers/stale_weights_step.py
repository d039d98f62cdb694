"""The optimizer steps while the gathered weights are kept: the next forward uses the old ones.

## What it does

Finds a forward or `unshard()` of a sharded model between the last backward and `optimizer.step()`, and
`set_reshard_after_backward(False)` that is never taken back, in a script that makes steps.

## Why is this bad

The optimizer changes the shards. The next forward gathers them again, unless the gathered parameters are
still there: then it computes with what was gathered before the step. Nothing raises, the model trains on
weights that are one step old. A root keeps its parameters after a forward, also under `no_grad`; the backward
frees them.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
 for _ in range(3):
     model(torch.randn(4, 8)).square().mean().backward()
+    optimizer.step()
+    optimizer.zero_grad()
     with torch.no_grad():
         print(model(torch.ones(1, 8)).mean())
-    optimizer.step()
-    optimizer.zero_grad()
```

## Forms

- Found: a trainer that logs between backward and step.
- Found: the switch on each block.
- Not found: a root that is set to keep its parameters.

## Known limits

Silent when `reshard()` is called anywhere, when the root is sharded with `reshard_after_forward` given, when
a backward may happen in code that cannot be followed, and when the order is not certain.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`set_reshard_after_backward`, `unshard`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py` (`unshard`: nothing is done where `is_unsharded`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Backward,
    Called,
    Event,
    Finding,
    Forward,
    Literal,
    Optimizer,
    Resharded,
    Stepped,
    Trace,
    Unsharded,
    Value,
    options,
    rule,
    unwrapped,
)

from .._common.shared import Shard, overlap, sharded, together
from .._common.tensors import has_group_of_its_own, has_root_above

_LEFT_ON = ".set_reshard_after_backward"


@rule(code="FSDP253", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Steps whose effect the next forward does not see."""
    if trace.truncated or trace.of(Resharded):
        return
    yield from _gathered_between(trace)
    yield from _never_freed(trace)


def _gathered_between(trace: Trace) -> Iterator[Finding]:
    """Gatherings after the last backward before a step."""
    said: set[object] = set()
    for stepped in trace.of(Stepped):
        backward = next(trace.before(stepped, Backward), None)
        if backward is None or _hidden_backward(trace, backward, stepped):
            continue
        for event, module in _gatherings(trace):
            if not backward.order < event.order < stepped.order or event.at.node in said:
                continue
            shard = _kept(trace, event, module, stepped)
            if shard is None or not together(event.guards, stepped.guards):
                continue
            if _runs_in_backward(event, backward) or not together(event.guards, backward.guards):
                continue
            said.add(event.at.node)
            what = "this forward" if isinstance(event, Forward) else "`unshard()`"
            yield Finding(
                at=event,
                message=f"{what} gathers `{module.words()}` between the backward and the step and nothing frees it: "
                "the next forward computes with the weights from before the step",
                because=(
                    (backward, "the backward, which frees the parameters"),
                    (stepped, "the step, which changes the shards"),
                ),
            )


def _gatherings(trace: Trace) -> Iterator[tuple[Event, Value]]:
    for forward in trace.of(Forward):
        if forward.how in ("call", "generate"):
            yield forward, forward.module
    for unsharded in trace.of(Unsharded):
        yield unsharded, unsharded.module


def _kept(trace: Trace, event: Event, module: Value, stepped: Stepped) -> Shard | None:
    """The sharding of a group that an event leaves gathered and that the optimizer updates."""
    found = sharded(trace, event, module, itself=True)
    if found is None:
        return None
    shard, inner = found
    if "reshard_after_forward" in shard.event.options or shard.event.open:
        return None
    if isinstance(event, Forward) and (
        has_root_above(trace, shard) or not has_group_of_its_own(trace, shard)
    ):
        return None
    for optimizer in options(stepped.optimizer):
        if isinstance(optimizer, Optimizer):
            if any(overlap(trace, unwrapped(p.of), inner) is not None for p in optimizer.over):
                return shard
    return None


def _runs_in_backward(event: Event, backward: Backward) -> bool:
    return any(site.node is backward.at.node for site in event.moment.calls)


def _hidden_backward(trace: Trace, backward: Backward, stepped: Stepped) -> bool:
    """Whether something between may run another backward that is not in the trace, or closures are stepped."""
    return any(
        backward.order < called.order < stepped.order
        and not any(b.at.node is called.at.node for b in trace.of(Backward))
        for called in trace.calls_named(_goes_backward)
    ) or any(s.moment.stage != backward.moment.stage for s in (stepped,))


def _goes_backward(name: str) -> bool:
    return name.rpartition(".")[2] in ("backward", "manual_backward", "grad")


def _never_freed(trace: Trace) -> Iterator[Finding]:
    """The switch that keeps parameters after each backward."""
    switched = list(trace.calls(_LEFT_ON))
    for called in switched:
        on = called.argument(0, "reshard_after_backward")
        found = sharded(trace, called, called.receiver, itself=True)
        if not _is_off(on) or found is None or (len(switched) > 1 and not all(map(_off, switched))):
            continue
        shard, module = found
        backward = next(trace.after(called, Backward), None)
        stepped = None if backward is None else next(trace.after(backward, Stepped), None)
        if stepped is None or any(e.order > called.order for e in trace.escapes(module)):
            continue
        if not together(stepped.guards, called.guards):
            continue
        yield Finding(
            at=called,
            message=f"the parameters of `{module.words()}` stay gathered after each backward and `reshard()` is "
            "never called: every forward after the first step uses the first weights or old ones",
            because=(
                shard.reason,
                (stepped, "the step, which changes the shards"),
            ),
        )


def _off(called: Called) -> bool:
    return _is_off(called.argument(0, "reshard_after_backward"))


def _is_off(value: Value | None) -> bool:
    return isinstance(value, Literal) and value.value is False
