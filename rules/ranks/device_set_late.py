"""The device of the rank is chosen after the model was sharded, or by a number that counts over all hosts.

## What it does

Finds `torch.cuda.set_device` and `torch.accelerator.set_device_index` that are called for the first time
after a `fully_shard` call, and those that are given the global rank in a script that knows its local rank too; also
devices that are named so (`torch.device(f"cuda:{rank}")`).

## Why is this bad

`fully_shard` moves a model on the CPU to the current device and makes its streams and buffers there. Until a
device is chosen that is device 0, or what PyTorch guesses from the rank: the shards of several ranks may meet
on one device, and what is made later lies on another one. Choose the device first, from `LOCAL_RANK`. The global rank is the
same number on one host only; on the second one there is no such device ("invalid device ordinal").

## Example

```diff
 import os

 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

+torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
 dist.init_process_group("nccl")
 model = nn.Linear(8, 8)
 fully_shard(model)
-torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
```

## Forms

- Found: a method of a trainer that runs after its constructor has sharded.
- Found: the global rank in the name of a device.
- Not found: the global rank in a script that reads no local rank, and so may be for one host.

## Fix safety

Unsafe: the statement moves above the first sharding, and above meshes and moves to the GPU before that, when
all are in one block, it does nothing else, and nothing between binds what it reads. What else was made on the
first device stays there. Safe for the global rank, in whose place the local one comes, in a script that cannot
run without `LOCAL_RANK`: on one host both are the same, and on several the call raised. There is no fix where the
script also makes or names devices by that number, and where the function is handed it.

## Known limits

Silent when a device was chosen before as well, and for sharding on a CPU mesh. A script that reads no local
rank may be for one host only: there the global rank is not reported.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_device.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_get_device_from_mesh`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Called, Finding, Literal, Part, Rank, Sharded, Trace, Value, rule, walk

from .._common.meshes import INIT
from .._common.shared import class_name, together
from ._common.devices import is_global
from ._common.fixes_devices import by_local_rank, chosen_before, names_global

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
    yield from _named_by_global_rank(trace)
    for chosen in trace.calls(*_SETTERS):
        read = _local_rank_read(trace, chosen)
        if is_global(_index(chosen)) and read is not None and not _gives_local_rank(chosen):
            yield Finding(
                at=chosen,
                message=f"`{chosen.at.code}` counts over all hosts: on the second host there is no such device; "
                "choose by the local rank",
                because=((read, "the rank on this host is read here"),),
                fix=by_local_rank(trace, chosen),
            )
        elif not any(earlier.order < chosen.order for earlier in trace.calls(*_SETTERS)):
            yield from _late(trace, chosen)


def _named_by_global_rank(trace: Trace) -> Iterator[Finding]:
    """Devices for a model that are named by the global rank: ``f"cuda:{rank}"``."""
    for named in trace.calls("torch.device", ".to", ".cuda"):
        given = named.arguments[0] if named.arguments else None
        counts = given is not None and _names_gpu(given, named.name == ".cuda")
        read = _local_rank_read(trace, named) if counts else None
        if read is not None and not _gives_local_rank(named):
            yield Finding(
                at=named,
                message=f"`{named.at.code}` counts over all hosts: on the second host there is no such device; "
                "name it by the local rank",
                because=((read, "the rank on this host is read here"),),
            )
            return


def _names_gpu(given: Value, itself: bool) -> bool:
    """Whether a device is named by the global rank: ``f"cuda:{rank}"``, or the number ``itself``."""
    if isinstance(given, Part) and given.operation:
        return "cuda" in str(given.operands[:1]) and names_global(given)
    return itself and is_global(given)


def _late(trace: Trace, chosen: Called) -> Iterator[Finding]:
    """The choice, when a model was sharded before it."""
    for sharded in trace.before(chosen, Sharded):
        if together(sharded.guards, chosen.guards) and not _in_context(sharded):
            yield Finding(
                at=chosen,
                message=f"the device is chosen after `{sharded.module.words()}` was sharded: its shards are "
                "on another device by then",
                because=((sharded, f"`{sharded.module.words()}` is sharded here, before"),),
                fix=chosen_before(trace, chosen),
            )
            return


def _index(chosen: Called) -> Value | None:
    return chosen.argument(0, "device")


def _local_rank_read(trace: Trace, chosen: Called) -> Called | None:
    """Where a script that shards has read its rank on the host, on a path to the choice or from it."""
    if not trace.of(Sharded):
        return None
    for called in trace.of(Called):
        result = called.result
        if isinstance(result, Rank) and result.scope == "local":
            if together(called.guards, chosen.guards):
                return called
    return None


def _gives_local_rank(chosen: Called) -> bool:
    """Whether the file sets ``LOCAL_RANK`` itself, as tests do that start their ranks on one host."""
    source = chosen.at.source
    if "LOCAL_RANK" not in source.text:
        return False
    targets = (
        one.target
        for node in walk(source.tree)
        if isinstance(node, cst.Assign)
        for one in node.targets
    )
    keys = (
        element.slice.value
        for target in targets
        if isinstance(target, cst.Subscript)
        for element in target.slice
        if isinstance(element.slice, cst.Index)
    )
    return any(isinstance(k, cst.SimpleString) and k.evaluated_value == "LOCAL_RANK" for k in keys)


def _on_cpu(trace: Trace) -> bool:
    """Whether the script makes a mesh of CPUs."""
    for called in trace.calls(INIT):
        device = called.argument(0, "device_type")
        if isinstance(device, Literal) and device.value == "cpu":
            return True
    return False


def _in_context(sharded: Sharded) -> bool:
    return any(class_name(c) in _CONTEXTS for c in sharded.within)
