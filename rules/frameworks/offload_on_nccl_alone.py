"""A framework offloads parameters to the CPU, and starts its process group for GPUs alone.

## What it does

Reports an `Accelerator` whose plugin says `cpu_offload=True`, and a Trainer whose arguments offload (`fsdp="full_shard offload"`, or `cpu_offload` in the
`fsdp_config`), both with version 2, where gradients are clipped, nothing names a backend for the CPU, and the settings of the launch offload nothing.

## Why is this bad

accelerate starts the process group before it looks at the plugin. It asks for a backend for the CPU only where the launcher says
that it offloads: `accelerate launch` with `fsdp_offload_params: true`. Otherwise the group is on NCCL alone. The shards and their gradients lie on the CPU
then, and their norm cannot be reduced: clipping raises a RuntimeError ("No backend type associated with device type cpu"). The Trainer clips by default.

## Example

```diff
 import torch
 from accelerate import Accelerator, FullyShardedDataParallelPlugin, InitProcessGroupKwargs
 from torch import nn

 plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_offload=True)
-accelerator = Accelerator(fsdp_plugin=plugin)
+backend = InitProcessGroupKwargs(backend="cpu:gloo,cuda:nccl")
+accelerator = Accelerator(fsdp_plugin=plugin, kwargs_handlers=[backend])
 model = nn.Linear(8, 8)
 model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
 accelerator.backward(model(torch.randn(4, 8, device=accelerator.device)).sum())
 accelerator.clip_grad_norm_(model.parameters(), 1.0)
```

## Forms

- Found: a Trainer, which clips by itself.
- Found: a plugin that a helper function makes.
- Not found: a plugin whose offloading an option of the command line decides.

## Known limits

A script does not show all of its launch: that is why this is a warning. Silent where the settings that are known to launch it offload too, or ask for
FULL_STATE_DICT, with which accelerate starts both backends. The backends were measured; the damage needs a GPU and is known from reports
(https://github.com/huggingface/accelerate/issues/3574), it was not run here.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/state.py (`PartialState.__init__`)
- https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/training_args.py (`_setup_devices`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Clipped, Finding, NcclAlone, Trace, rule

from .._common.offloaded import offloaded
from .._common.shared import together

_BOTH = '"cpu:gloo,cuda:nccl"'
_REMEDIES = {
    "the Trainer": f"set `ddp_backend={_BOTH}`",
    "the plugin": f"give the Accelerator `kwargs_handlers=[InitProcessGroupKwargs(backend={_BOTH})]`",
}


@rule(code="FSDP616", group="suspicious", preview=True)
def check(trace: Trace) -> Iterator[Finding]:
    """Groups that accelerate starts for GPUs alone."""
    for started in trace.of(NcclAlone):
        for clipped in trace.after(started, Clipped):
            if offloaded(trace, clipped) is None or not together(started.guards, clipped.guards):
                continue
            yield Finding(
                at=started,
                message=f"{started.by} offloads parameters to the CPU, and accelerate starts the group on NCCL alone unless "
                f"its launcher says `fsdp_offload_params: true`: clipping cannot reduce the norm. Launch it so, or {_REMEDIES[started.by]}",
                because=((clipped, "the norm is reduced here"),),
            )
            break
