"""A plain tensor is copied into a parameter of a sharded model, or the reverse.

## What it does

Finds `copy_` between a parameter (or its `.data`) of a sharded model and a tensor that is surely a plain one:
made by `torch.randn`, `ones`, `from_numpy`, …, or a parameter of a model that is not sharded.

## Why is this bad

A parameter of a sharded model is a `DTensor` and cannot be copied into from a plain tensor, nor into one:
RuntimeError ("got mixed torch.Tensor and DTensor"). Values are put in before `fully_shard`, by
`set_model_state_dict` afterwards, or shard by shard with `distribute_tensor(value, p.device_mesh,
p.placements)`.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
-fully_shard(model)
 with torch.no_grad():
     model.weight.copy_(torch.eye(8))
+fully_shard(model)
```

## Forms

- Found: a moving average that is not sharded.
- Found: a method that initialises after the sharding.
- Not found: tensors from a file of safetensors, which are always plain.
- Not found: a part of a parameter that is assigned.

## Known limits

Tensors of unknown origin (loaded, or arguments of functions that the project never calls) are left alone, and
so are scripts that make distributed tensors by other means too. Arithmetic is FSDP245, `p.data = …` is
FSDP249.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.html
- `torch/distributed/tensor/_dispatch.py` ("got mixed torch.Tensor and DTensor")
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from .._common.tensors import asks_for_kind, mixed, operands, shard_of


@rule(code="FSDP239", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Copies between plain tensors and shards."""
    for copied in trace.calls(".copy_"):
        found = None if asks_for_kind(copied) else mixed(trace, copied, list(operands(copied)))
        if found is None or copied.receiver is None:
            continue
        into_shard = shard_of(trace, copied, copied.receiver) is not None
        how = "into" if into_shard else "from"
        yield Finding(
            at=copied,
            message=f"`{found.sharded.words()}` is a DTensor since it was sharded: copying {how} it and a plain "
            "tensor raises RuntimeError",
            because=(found.shard.reason,),
        )
