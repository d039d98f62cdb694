"""A context manager that sets the device is called as a statement and sets nothing.

## What it does

Finds `torch.accelerator.device_index(i)` and `torch.cuda.device(i)` (also `torch.xpu.device`) that stand
alone, outside a `with`.

## Why is this bad

They are context managers: making one does nothing, only entering it sets the device. Every rank of a host
stays on device 0, where all of them then shard and compute, until memory runs out or NCCL reports a
duplicate GPU.

## Example

```python
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.accelerator.device_index(int(os.environ["LOCAL_RANK"]))
dist.init_process_group()
model = nn.Linear(8, 8)
fully_shard(model)
```

## Use instead

```python
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
dist.init_process_group()
model = nn.Linear(8, 8)
fully_shard(model)
```

## Fix safety

Safe: the statement did nothing before. `set_device_index` and `set_device` take the same index.

## Known limits

A context manager that is kept in a name and never entered is not reported.

## References

- https://docs.pytorch.org/docs/stable/accelerator.html (`device_index`, `set_device_index`)
- `torch/accelerator/__init__.py`, `torch/cuda/__init__.py`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Called, Finding, Fix, Replace, Trace, rule

from ._fixes import call_of
from ._shared import use_of

_SETTERS = {
    "torch.accelerator.device_index": "set_device_index",
    "torch.cuda.device": "set_device",
    "torch.xpu.device": "set_device",
}


@rule(code="FSDP413", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Contexts that nobody enters."""
    for called in trace.calls(*_SETTERS):
        if use_of(called.at) == "Expr":
            setter = _SETTERS[called.name]
            yield Finding(
                at=called,
                message=f"`{called.name}` is a context manager: as a statement it sets no device, and every "
                f"rank stays on device 0; use `{setter}`",
                fix=_set(called, setter),
            )


def _set(called: Called, setter: str) -> Fix | None:
    """The function that sets the device for good."""
    call = call_of(called.at)
    if call is None or not isinstance(call.func, cst.Attribute):
        return None
    return Fix(f"use `{setter}`", (Replace(called.at.source, call.func.attr, setter),), "safe")
