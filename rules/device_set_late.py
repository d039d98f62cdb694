"""The device of the rank is chosen after the model was sharded.

## What it does

Finds `torch.cuda.set_device` and `torch.accelerator.set_device_index` that are called for the first time
after a `fully_shard` call.

## Why is this bad

`fully_shard` moves a model on the CPU to the current device and makes its streams and buffers there. Until a
device is chosen that is device 0, or what PyTorch guesses from the rank: the shards of several ranks may meet
on one device, and what is made later lies on another one. Choose the device first, from `LOCAL_RANK`.

## Example

```python
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
model = nn.Linear(8, 8)
fully_shard(model)
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
```

## Use instead

```python
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
model = nn.Linear(8, 8)
fully_shard(model)
```

## Fix safety

Unsafe: the statement moves above the first sharding, and above meshes and moves to the GPU before that, when
all stand in one block, it does nothing else, and nothing between binds what it reads. What else was made on the
first device stays there.

## Known limits

Silent when a device was chosen
before as well, and for sharding on a CPU mesh. A device that is chosen by the global rank is not reported: on
one host it is the same.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_device.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_get_device_from_mesh`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Event,
    Finding,
    Fix,
    GroupStarted,
    Literal,
    Moved,
    Sharded,
    Trace,
    rule,
)

from ._devices import to_current
from ._fixes_effects import Effect, holds
from ._meshes import INIT
from ._shared import class_name, together

_SETTERS = (
    "torch.cuda.set_device",
    "torch.xpu.set_device",
    "torch.accelerator.set_device_index",
    "torch.accelerator.set_device_idx",
)
_CONTEXTS = ("torch.cuda.device", "torch.device", "torch.accelerator.device_index")


@rule(code="FSDP417", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Devices that are chosen too late."""
    if trace.truncated or _on_cpu(trace):
        return
    for chosen in trace.calls(*_SETTERS):
        if any(earlier.order < chosen.order for earlier in trace.calls(*_SETTERS)):
            continue
        for sharded in trace.before(chosen, Sharded):
            if together(sharded.guards, chosen.guards) and not _in_context(sharded):
                yield Finding(
                    at=chosen,
                    message=f"the device is chosen after `{sharded.module.words()}` was sharded: its shards are "
                    "on another device by then",
                    because=((sharded, f"`{sharded.module.words()}` is sharded here, before"),),
                    fix=_moved(trace, chosen),
                )
                break


def _on_cpu(trace: Trace) -> bool:
    """Whether the script makes a mesh of CPUs."""
    for called in trace.calls(INIT):
        device = called.argument(0, "device_type")
        if isinstance(device, Literal) and device.value == "cpu":
            return True
    return False


def _in_context(sharded: Sharded) -> bool:
    return any(class_name(c) in _CONTEXTS for c in sharded.within)


def _moved(trace: Trace, chosen: Called) -> Fix | None:
    """The choice above everything that asks for the current device."""
    asking: list[Event] = list(trace.before(chosen, Sharded))
    asking += (m for m in trace.before(chosen, Moved) if to_current(m))
    asking += (c for c in trace.calls(INIT) if trace.precedes(c, chosen))
    effect = Effect.among(chosen, asking)
    if effect is None or not effect.is_only({chosen.at.node}) or effect.disturbed():
        return None
    if _asks_the_group(trace, effect) and not _started_above(trace, effect):
        return None
    return effect.above("choose the device before the sharding", "look at what was made before it")


def _asks_the_group(trace: Trace, effect: Effect) -> bool:
    """Whether the statement calls functions that need a process group."""
    return any(
        called.name.startswith("torch.distributed.") and holds(effect.line, called)
        for called in trace.of(Called)
    )


def _started_above(trace: Trace, effect: Effect) -> bool:
    """Whether the process group is surely started above the first of the statements to move over."""
    started = list(trace.before(effect.moving, GroupStarted))
    below = any(holds(one, event) for one in effect.between for event in started)
    return not below and any(effect.moving.guards.implies(s.guards) for s in started)
