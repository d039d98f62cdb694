"""A model on the meta device is moved by `to`, `cuda` or `cpu`.

## What it does

Finds `.to(device)`, `.cuda()` and `.cpu()` of models whose layers are built on the meta device and have got
no memory since.

## Why is this bad

Tensors on the meta device have no data that could be copied: the call raises NotImplementedError. `to_empty`
allocates memory instead, and the values come from an initialisation or a load afterwards. That is done after
`fully_shard`, so that each rank allocates its shards only.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 with torch.device("meta"):
     model = nn.Linear(8, 8)
 fully_shard(model)
-model.to("cpu")
+model.to_empty(device="cpu")
 model.reset_parameters()
```

## Forms

- Found: a device that the constructor of a trainer is given.
- Found: accelerate's context.
- Found: a cast before, which gives no memory.
- Not found: the default device.

## Fix safety

Unsafe: `to_empty(device=…)` in its place. The fix is left out unless something gives the parameters values
afterwards; look whether that is all of them, and the buffers that are in no state dict.

## Known limits

Silent where the argument may be a dtype or `"meta"`, as soon as the model was handed to code that cannot be
followed, and for layers of libraries other than torch; whole models of Transformers that `from_config` builds are known.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html (`to_empty`)
- `torch/nn/modules/module.py` (`Module.to`: "Cannot copy out of meta tensor")
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Edit,
    Event,
    External,
    Finding,
    Fix,
    Forward,
    Instance,
    Literal,
    Moved,
    Part,
    Rank,
    Replace,
    Trace,
    Value,
    options,
    rule,
    unwrapped,
)

from .._common.fixes import call_of
from .._common.meta import born_on_meta, is_meta, plain, valued, ways_without_memory
from .._common.shared import class_name, together

_TO_DEVICE = ("to", "cuda", "cpu", "xpu")


@rule(code="FSDP250", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Moves of what is not there."""
    for moved in trace.of(Moved):
        if moved.how not in _TO_DEVICE or not all(map(plain, moved.within)):
            continue
        if moved.how == "to" and not any(_is_device(value) for value in moved.to):
            continue
        module = unwrapped(moved.module)
        built = _without_memory(trace, moved, module)
        if built is None:
            continue
        yield Finding(
            at=moved,
            message=f"`{module.words()}` is on the meta device and has no data to copy: `.{moved.how}` raises "
            "NotImplementedError; use `to_empty` and give it values then",
            because=((built, "built without memory here"),),
            fix=_to_empty(trace, moved, module),
        )


def _without_memory(trace: Trace, moved: Moved, module: Value) -> Called | None:
    """The call that built a layer of the model that has no memory yet; that others have got some does not matter."""
    for called, guards in born_on_meta(trace):
        if called.order < moved.order and trace.inside(called.result, module):
            both = together(guards, moved.guards)
            if both and ways_without_memory(trace, moved, module, guards, called.result):
                return called
    return None


def _is_device(value: Value) -> bool:
    """Whether a value surely is a device other than meta: no dtype and no tensor."""
    return all(_one_device(one) for one in options(value))


def _one_device(value: Value) -> bool:
    if isinstance(value, Instance) and class_name(value) == "torch.device":
        given = value.part(".argument0")
        return all(_names_device(one) for one in options(given))
    if isinstance(value, Literal):
        return isinstance(value.value, str | int) and not is_meta(value)
    return isinstance(value, Rank) or (isinstance(value, Part) and _names_device(value))


_ASKED = (
    "torch.accelerator.current_accelerator",
    "torch.accelerator.current_device_index",
    "torch.cuda.current_device",
)
"""Functions that say which device is there."""


def _names_device(value: Value) -> bool:
    """Whether a device is given by a name that is known, with the number of a rank, or comes from a call of torch."""
    if isinstance(value, Part) and isinstance(value.owner, External):
        return value.owner.name in _ASKED
    return _is_indexed(value) if isinstance(value, Part) else not is_meta(value)


def _is_indexed(value: Value) -> bool:
    """Whether a text is the name of a device with its number: ``f"cuda:{local_rank}"``, ``f"{kind}:{local_rank}"``."""
    text = value.operands[0] if value.operation == "format" and value.operands else ""
    if not isinstance(text, str):
        return False
    kind, _, number = text.partition(":")
    return kind in ("cpu", *_TO_DEVICE) or (kind == "{}" and (number == "{}" or number.isdigit()))


def _to_empty(trace: Trace, moved: Moved, module: Value) -> Fix | None:
    """``to_empty(device=…)`` with the device that was given."""
    call = call_of(moved.at)
    if call is None or not isinstance(call.func, cst.Attribute) or len(call.args) > 1:
        return None
    end = _first_use(trace, moved, module)
    if end is None or not valued(trace, moved, end, module):
        return None
    source = moved.at.source
    given = source.code(call.args[0].value) if call.args else f'"{moved.how}"'
    if moved.how == "to" and not call.args:
        return None
    owner = source.code(call.func.value)
    edits: tuple[Edit, ...] = (Replace(source, call, f"{owner}.to_empty(device={given})"),)
    note = "look whether all parameters and buffers get values afterwards"
    return Fix("allocate memory by `to_empty`", edits, "unsafe", note)


def _first_use(trace: Trace, moved: Moved, module: Value) -> Event | None:
    """The first forward after the move, or else the last event of the run."""
    for forward in trace.after(moved, Forward):
        if trace.inside(module, unwrapped(forward.module)):
            return forward
    return trace.events[-1] if trace.events else None
