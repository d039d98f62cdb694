"""Parameters are offloaded to the CPU, and the process group has no backend for CPU tensors.

## What it does

Finds `CPUOffloadPolicy` together with `init_process_group("nccl")`, in a script that clips the gradients of
the model.

## Why is this bad

With the policy the shards and their gradients lie on the CPU. Gathering and reducing is done on GPU copies,
but the norm for clipping is reduced where the gradients are, and NCCL cannot: RuntimeError ("No backend type
associated with device type cpu"). A group with both backends serves each device.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

-dist.init_process_group("nccl")
+dist.init_process_group("cpu:gloo,cuda:nccl")
 model = nn.Linear(8, 8)
 fully_shard(model, offload_policy=CPUOffloadPolicy())
 model(torch.randn(4, 8, device="cuda")).sum().backward()
 torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
```

## Forms

- Found: offloading that an option switches on.
- Not found: a backend that is chosen where there is a GPU.
- Not found: a norm that is computed without clipping.

## Fix safety

Safe: the backend becomes `"cpu:gloo,cuda:nccl"`; collectives of GPU tensors use NCCL as before.

## Known limits

Only backends that are written as a constant. Groups that accelerate or the Trainer start themselves are FSDP616's. The damage needs a GPU and is known from reports
(https://github.com/huggingface/accelerate/issues/3574). On one H100 (torch 2.11) the examples run through: one rank has its whole norm already.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`CPUOffloadPolicy`)
- https://docs.pytorch.org/docs/stable/distributed.html (`init_process_group`: several backends)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Clipped, Finding, GroupStarted, Trace, rule

from .._common.fixes import BOTH_BACKENDS, with_both_backends
from .._common.offloaded import offloaded, policies
from .._common.shared import together


@rule(code="FSDP234", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Groups that cannot reduce what is offloaded."""
    for started in trace.of(GroupStarted):
        if started.backend != "nccl":
            continue
        for clipped in trace.after(started, Clipped):
            shard = offloaded(trace, clipped)
            if shard is None or not together(started.guards, clipped.guards):
                continue
            if not together(started.guards, shard.guards):
                continue
            are = "are" if len(policies(shard)) == 1 else "can be"
            yield Finding(
                at=started,
                message=f"the shards of `{shard.module.words()}` {are} offloaded to the CPU, and a group on "
                f'NCCL alone cannot reduce their norm: use "{BOTH_BACKENDS}"',
                because=(
                    (shard.event, "sharded with `CPUOffloadPolicy` here"),
                    (clipped, "the norm is reduced here"),
                ),
                fix=with_both_backends(started.at, "add a backend for the CPU"),
            )
            break
