"""Every rank puts the model on GPU 0, because none has chosen its device.

## What it does

Finds `.cuda()` and `.to("cuda")` of a model before the first mesh or `fully_shard` call, in a script with a
process group on NCCL that nowhere chooses a device: no `set_device`, no `device_id` of the group, no
`torch.cuda.device`; also of `.to(f"cuda:{local_rank}")`, which chooses it for the model only. Also `.to("cuda:0")` of a sharded model, written so or as the default of an argument: all ranks
get the same arguments.

## Why is this bad

"cuda:0" is the first GPU of the host for every rank, whatever device was set. "cuda" is the current device, and that is GPU 0 in each process. All ranks of a host build their whole copy
there, one after the other out of memory. PyTorch chooses a device from `LOCAL_RANK` when it makes the mesh,
but only for processes that have not used CUDA before: this call uses it. A model that was moved to `cuda:3` by its number
does not stay there: `fully_shard` moves it to the current device, GPU 0.

## Example

```diff
+import os
+
+import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

+torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
 dist.init_process_group("nccl")
 model = nn.Linear(8, 8).cuda()
 fully_shard(model)
```

## Forms

- Found: a device that is chosen where there is a GPU.
- Found: a device by its number, for the model only.
- Found: the default of an argument, which all ranks get.
- Not found: a layer that is built on the GPU.
- Not found: a model that is built in a context of the GPU.

## Fix safety

Unsafe: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` comes above the start of the process group, or above
the move, whichever surely runs for GPUs. torchrun sets `LOCAL_RANK`; where a launcher does not, or gives each
process one visible GPU, the line is wrong. Safe in a script that needs `LOCAL_RANK` itself; a name that holds it
is used. There is no fix where the script starts the ranks, or hands them their numbers.

## Known limits

Where a launcher gives each process one visible GPU, GPU 0 is right. Silent when the script
names `CUDA_VISIBLE_DEVICES`, calls any function that chooses a device, passes `device_id` anywhere, or uses a
launcher library in the same run. The damage needs several GPUs and was not run here.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.cuda.set_device.html
- `torch/distributed/device_mesh.py` (`_setup_world_group_and_device`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_get_device_from_mesh`, `_move_states_to_device`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    Finding,
    GroupStarted,
    Instance,
    Literal,
    Moved,
    Part,
    Sharded,
    Trace,
    Value,
    rank_dependent,
    rule,
    unwrapped,
)

from .._common.meshes import INIT
from .._common.shared import class_name, overlap, together
from ._common.devices import names_own, to_current
from ._common.fixes_devices import device_chosen

_CHOOSING = (
    "torch.cuda.set_device",
    "torch.cuda.device",
    "torch.accelerator.set_device_index",
    "torch.accelerator.set_device_idx",
    "torch.accelerator.device_index",
    "torch.set_default_device",
    ".set_device",  # of `torch.get_device_module()`
)


@rule(code="FSDP405", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Models that all go to the first GPU."""
    if trace.truncated or trace.entry != "__main__" or _may_see_one_gpu(trace):
        return
    yield from _on_one_gpu(trace)
    if _chosen(trace):
        return
    for moved in trace.of(Moved):
        if not (to_current(moved) or names_own(moved)):
            continue
        started = _on_nccl(trace, moved)
        sharded = next(
            (
                s
                for s in trace.after(moved, Sharded)
                if overlap(trace, s.module, unwrapped(moved.module)) is not None
                and together(s.guards, moved.guards)
            ),
            None,
        )
        if started is None or sharded is None or _device_known(trace, moved):
            continue
        said = f"every rank puts the whole `{moved.module.words()}` on GPU 0"
        if names_own(moved):
            said = f"`{moved.module.words()}` goes to the GPU of its rank, and `fully_shard` moves it to GPU 0"
        yield Finding(
            at=moved,
            message=f"no device was chosen: {said}; call `torch.cuda.set_device` with the local rank before",
            because=((started, "the process group on NCCL, without `device_id`"),),
            fix=device_chosen(trace, moved, started),
        )
        return


def _on_one_gpu(trace: Trace) -> Iterator[Finding]:
    """Models that each rank puts on the same GPU by its number."""
    for moved in trace.of(Moved):
        number = next((n for one in moved.to for n in _numbers(trace, moved, one)), None)
        started = None if number is None else _on_nccl(trace, moved)
        if started is None or any(rank_dependent(g.test) for c in moved.guards.clauses for g in c):
            continue
        if any(
            overlap(trace, s.module, unwrapped(moved.module)) is not None
            and together(s.guards, moved.guards)
            for s in trace.of(Sharded)
        ):
            yield Finding(
                at=moved,
                message=f"every rank puts `{moved.module.words()}` on GPU {number}: name the device by the local rank, or "
                'set the device once and write "cuda"',
                because=((started, "the process group on NCCL, of several ranks"),),
            )
            return


_GPU = re.compile(r"cuda:(\d+)")


def _numbers(trace: Trace, moved: Moved, given: Value) -> Iterator[int]:
    """The number of the GPU that a device surely is, on all ranks: a constant, or the default of an argument."""
    if isinstance(given, Instance) and class_name(given) == "torch.device":
        given = given.part(".argument0")
    if moved.how == "cuda" and isinstance(given, Literal) and type(given.value) is int:
        yield given.value
    found = given
    if isinstance(given, Part) and given.name:
        found = next(
            (
                called.keywords.get("default", given)
                for called in trace.calls(".add_argument")
                for name in called.arguments
                if (isinstance(name, Literal) and name.value == f"--{given.name.replace('_', '-')}")
                or (isinstance(name, Literal) and name.value == f"--{given.name}")
            ),
            given,
        )
    if isinstance(found, Literal) and (gpu := _GPU.fullmatch(str(found.value))):
        yield int(gpu[1])


def _on_nccl(trace: Trace, moved: Moved) -> GroupStarted | None:
    for started in trace.of(GroupStarted):
        if "nccl" in (started.backend or "nccl") and together(started.guards, moved.guards):
            return started
    return None


def _device_known(trace: Trace, moved: Moved) -> bool:
    """Whether a mesh or a sharding before the move may have chosen the device."""
    meshes = any(c.order < moved.order for c in trace.calls(INIT))
    return meshes or next(trace.before(moved, Sharded), None) is not None


def _chosen(trace: Trace) -> bool:
    """Whether the script may choose a device anywhere."""
    return any(
        called.name in _CHOOSING
        or "device_id" in called.keywords
        or "device_ids" in called.keywords
        for called in trace.of(Called)
    )


def _may_see_one_gpu(trace: Trace) -> bool:
    """Whether the script, or a library that launches it, may show each rank one GPU only."""
    for called in trace.of(Called):
        given = (*called.arguments, *called.keywords.values())
        if any(isinstance(v, Literal) and v.value == "CUDA_VISIBLE_DEVICES" for v in given):
            return True
        if called.name.startswith(("accelerate.", "lightning.", "ray.", "deepspeed.")):
            return True
    return any(
        "CUDA_VISIBLE_DEVICES" in str(key) for w in trace.memory.fields.values() for key in w
    )
