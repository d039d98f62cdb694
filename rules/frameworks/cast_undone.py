"""A model in 16 bits that accelerate casts back to float32 before it shards it.

## What it does

Reports models that are loaded with `dtype=torch.bfloat16`, or cast by `.bfloat16()`, `.half()` or `.to(dtype)`, before accelerate or the
Trainer shards them by FSDP2 with mixed precision.

## Why is this bad

With mixed precision, `prepare` casts all trainable parameters to float32 first: the weights, their gradients and the optimizer's state take twice the
memory that the script plans with. It says so only at the log level of information. Rounded once to 16 bits, the weights do not get their digits back.
Who wants float32 weights loads them so; who wants weights in 16 bits turns mixed precision off.

## Example

```diff
 import torch
 from accelerate import Accelerator, FullyShardedDataParallelPlugin
 from torch import nn

 accelerator = Accelerator(
     mixed_precision="bf16", fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)
 )
-model = nn.Linear(8, 8).bfloat16()
+model = nn.Linear(8, 8)
 optimizer = torch.optim.AdamW(model.parameters())
 model, optimizer = accelerator.prepare(model, optimizer)
```

## Forms

- Found: the dtype of a model of transformers.
- Found: a helper function that casts.
- Not found: a layer that is built in 16 bits.

## Known limits

Frozen parameters keep their dtype: models with adapters of PEFT or that are quantized are left alone.

## References

- https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/utils/fsdp_utils.py (`fsdp2_prepare_model`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Called, Event, Finding, Trace, Upcast, rule, unwrapped

from .._common.casts import lowered
from .._common.parts import frozen
from .._common.shared import overlap, together


@rule(code="FSDP613", group="perf", preview=True)
def check(trace: Trace) -> Iterator[Finding]:
    """Casts that have no effect."""
    if any(trace.calls("peft.get_peft_model", "peft.LoraConfig")):
        return
    for event, module, dtype in lowered(trace):
        for upcast in trace.after(event, Upcast):
            same = overlap(trace, unwrapped(upcast.module), module) is not None
            if not same or not together(upcast.guards, event.guards):
                continue
            if frozen(trace, module) or _quantized(event):
                continue
            yield Finding(
                at=event,
                message=f"`{dtype}` has no effect: because of {upcast.by} the trainable parameters are cast to float32 before they are sharded",
                because=((upcast, "the model is cast and sharded here"),),
            )
            break


def _quantized(event: Event) -> bool:
    return isinstance(event, Called) and "quantization_config" in event.keywords
