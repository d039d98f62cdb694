"""A sharded model computes while its parameters are still on the meta device.

## What it does

Finds models whose layers are built under `torch.device("meta")` (or with `device="meta"`), that are sharded and
called, with nothing between that gives them memory: neither `to_empty` nor the loading of a state.

## Why is this bad

Tensors on the meta device have a shape and no data. `fully_shard` shards them as they are, and the first forward
raises RuntimeError with the names of the parameters.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
with torch.device("meta"):
    model = nn.Linear(8, 8)
fully_shard(model)
model(torch.randn(4, 8)).sum().backward()
```

## Use instead

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
with torch.device("meta"):
    model = nn.Linear(8, 8)
fully_shard(model)
model.to_empty(device="cpu")
model.reset_parameters()
model(torch.randn(4, 8)).sum().backward()
```

## Known limits

Silent as soon as the model was handed to code that cannot be followed, and for layers of libraries.
There is no fix: `to_empty` needs the device and the project's own initialisation.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py` ("materialized from meta device")
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Assigned,
    Called,
    Event,
    Finding,
    Forward,
    Guards,
    Instance,
    Literal,
    Loaded,
    Moved,
    Restored,
    Trace,
    Value,
    options,
    rule,
    unwrapped,
)

from ._shared import cases, class_name, has_parameters, overlap, sharded, together

_PLAIN = (
    "contextlib.",
    "torch.amp.",
    "torch.cuda.amp.",
    "torch.device",
    "torch.enable_grad",
    "torch.inference_mode",
    "torch.no_grad",
    "torch.profiler.",
    "torch.set_grad_enabled",
)


@rule(code="FSDP215", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """First forwards of models without memory."""
    born = [(called, guards) for called in trace.of(Called) for guards in _on_meta(trace, called)]
    said: set[Value] = set()
    for forward in trace.of(Forward) if born else []:
        found = sharded(trace, forward, forward.module)
        if forward.how != "call" or found is None or not all(map(_plain, forward.within)):
            continue
        shard, module = found
        empty = [
            (called, guards)
            for called, guards in born
            if trace.inside(called.result, module) and together(guards, forward.guards)
        ]
        if not empty or any(called.result in said for called, _ in empty):
            continue
        said.update(called.result for called, _ in empty)
        called, guards = empty[0]
        if together(guards, shard.guards) and not _given_memory(trace, forward, module):
            yield Finding(
                at=forward,
                message=f"`{module.words()}` computes while its parameters are on the meta device: "
                "RuntimeError; call `to_empty` and initialise them, or load a state, before",
                because=(
                    (called, "built without memory here"),
                    (shard.event, f"`{shard.module.words()}` is sharded here"),
                ),
            )


def _on_meta(trace: Trace, called: Called) -> Iterator[Guards]:
    """Under which guards a call builds a layer with parameters on the meta device."""
    if not has_parameters(trace, called.result, 0):
        return
    device = called.keywords.get("device")
    devices = [device] if device is not None else list(called.within)
    for one in devices:
        for guards, value in cases(called, one):
            if _is_meta(value):
                yield guards


def _is_meta(value: Value) -> bool:
    """``"meta"`` or ``torch.device("meta")``."""
    if isinstance(value, Instance) and class_name(value) == "torch.device":
        value = value.part(".argument0")
    return isinstance(value, Literal) and value.value == "meta"


def _plain(context: Value) -> bool:
    """Whether tensors are ordinary ones in a context: not so under ``FakeTensorMode``."""
    return all(class_name(one).startswith(_PLAIN) for one in options(context))


def _given_memory(trace: Trace, forward: Event, module: Value) -> bool:
    """Whether anything before the forward may have given the module's parameters memory."""
    if any(e.order < forward.order for e in trace.escapes(module)):
        return True
    if any(holder in trace.memory.foreign for holder in trace.memory.holders(module)):
        return True
    touched = [e.module for e in trace.before(forward, Moved)]
    touched += [e.into for e in trace.before(forward, Restored)]
    touched += [e.owner for e in trace.before(forward, Assigned)]
    touched += [s.of for e in trace.before(forward, Loaded) for s in e.states]
    return any(
        overlap(trace, unwrapped(one), module) is not None
        for value in touched
        for one in options(value)
    ) or any(".data" in written for written in trace.memory.fields.values())
