"""Plain tensors and parameters of a sharded model meet in one operation.

## What it does

Finds arithmetic (`*`, `+`, `mul_`, `add_`, `lerp_`, `torch.where`, `masked_fill_`, `F.mse_loss`, …) between a parameter or
gradient of a sharded model and a tensor that is surely a plain one of several elements: made by
`torch.randn`, `ones`, …, or a parameter of a model that is not sharded.

## Why is this bad

A parameter of a sharded model is a `DTensor`. It can be combined with numbers and with other `DTensor`s, not
with plain tensors: RuntimeError ("got mixed torch.Tensor and DTensor"). Averages of weights, masks and noise
are the usual places. Build the twin of a model and shard it in the same way, or make the tensor from the
parameter (`torch.randn_like(p)`).

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 average = nn.Linear(8, 8)
 fully_shard(model)
+fully_shard(average)
 with torch.no_grad():
     for kept, new in zip(average.parameters(), model.parameters()):
         kept.mul_(0.9).add_(new, alpha=0.1)
```

## Forms

- Found: a class that keeps a plain twin.
- Found: noise, and a mask.
- Found: a penalty for the distance to weights that were copied before the sharding.
- Not found: tensors of a file.
- Not found: functions over lists of tensors.

## Known limits

A tensor of one element is taken for the same on all ranks and may be mixed. Tensors of unknown origin
(loaded, or arguments of functions that the project never calls) are left alone, and so are scripts that make
distributed tensors by other means too. Copies are FSDP239.

## References

- https://docs.pytorch.org/docs/stable/distributed.tensor.html
- `torch/distributed/tensor/_dispatch.py` ("got mixed torch.Tensor and DTensor")
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from .._common.tensors import asks_for_kind, computations, mixed

_METHODS = tuple(
    f".{name}"
    for name in "add add_ addcdiv addcdiv_ addcmul addcmul_ allclose div div_ eq equal lerp lerp_ "
    "masked_fill masked_fill_ matmul mm mul mul_ sub sub_ where".split()
)
_FUNCTIONS = (
    *(f"torch.{name}" for name in "add allclose div dot equal lerp mul sub where".split()),
    *(f"torch.nn.functional.{name}" for name in "mse_loss l1_loss smooth_l1_loss".split()),
)
_OPERATORS = ("+", "-", "*", "/", ">", "<")


@rule(code="FSDP245", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Operations on what does not go together."""
    for event, values in computations(trace, (*_METHODS, *_FUNCTIONS), _OPERATORS):
        found = None if asks_for_kind(event) else mixed(trace, event, values)
        if found is None:
            continue
        yield Finding(
            at=event,
            message=f"`{found.sharded.words()}` is a DTensor and `{found.plain.words()}` a plain tensor: one "
            "operation on both raises RuntimeError",
            because=(found.shard.reason,),
        )
