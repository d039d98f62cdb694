"""A context manager that sets the device is called as a statement and sets nothing.

## What it does

Finds `torch.accelerator.device_index(i)` and `torch.cuda.device(i)` (also `torch.xpu.device`) that are
called outside a `with`.

## Why is this bad

They are context managers: only entering one sets the device, so the statement has no effect. Whatever uses CUDA
before something else sets the device of the rank then uses device 0 on every rank. Under torchrun the first mesh
(`init_device_mesh`, or `fully_shard` without one) sets it from `LOCAL_RANK`, but only in a process that has not
used CUDA yet; a script that relies on that works until somebody adds a tensor or a call above it.

## Example

```diff
 import os

 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

-torch.accelerator.device_index(int(os.environ["LOCAL_RANK"]))
+torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
 dist.init_process_group("nccl")
 model = nn.Linear(8, 8)
 fully_shard(model)
```

## Forms

- Found: `torch.cuda.device` in a helper function.
- Found: a name that the script gives it.
- Not found: a context manager that is kept in a name and never entered.

## Fix safety

Safe where the script has asked whether there is a device, or uses NCCL: the statement did nothing before, and
`set_device_index` and `set_device` take the same index. Elsewhere unsafe: they raise on a machine without one.

## Known limits

A context manager that is kept in a name and never entered is not reported.

## References

- https://docs.pytorch.org/docs/stable/accelerator.html (`device_index`, `set_device_index`)
- `torch/accelerator/__init__.py`, `torch/cuda/__init__.py`
- `torch/distributed/device_mesh.py` (`_setup_world_group_and_device`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    External,
    Finding,
    Fix,
    GroupStarted,
    Part,
    Replace,
    Trace,
    rule,
)

from .._common.fixes import call_of
from .._common.shared import use_of

_SETTERS = {
    "torch.accelerator.device_index": "set_device_index",
    "torch.cuda.device": "set_device",
    "torch.xpu.device": "set_device",
}
_ASKING = (".is_available", ".device_count")


@rule(code="FSDP413", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Device contexts that are never entered."""
    for called in trace.calls(*_SETTERS):
        if use_of(called.at) == "Expr":
            setter = _SETTERS[called.name]
            yield Finding(
                at=called,
                message=f"`{called.name}` is a context manager: this statement has no effect and sets no device; "
                f"use `{setter}`",
                fix=_set(called, setter, certain=_has_device(trace, called)),
            )


def _has_device(trace: Trace, called: Called) -> bool:
    """Whether a device is there: the script has asked for one, or its process group needs it."""
    asked = (g.test.owner for g in called.guards if g.taken and isinstance(g.test, Part))
    return any(isinstance(one, External) and one.name.endswith(_ASKING) for one in asked) or any(
        (started.backend or "").partition(":")[0] == "nccl" for started in trace.of(GroupStarted)
    )


def _set(called: Called, setter: str, certain: bool) -> Fix | None:
    """The function that sets the device for good."""
    call = call_of(called.at)
    if call is None or not isinstance(call.func, cst.Attribute):
        return None
    title, edit = f"use `{setter}`", Replace(called.at.source, call.func.attr, setter)
    if certain:
        return Fix(title, (edit,), "safe")
    return Fix(title, (edit,), "unsafe", "it raises on a machine without such a device")
