"""A weight of a sharded module is used where it is not gathered.

## What it does

Finds functions that compute with a layer's weight directly (`F.linear(x, model.head.weight)`, `x @
layer.weight.t()`, `F.embedding(ids, embed.weight)`) where the group that the weight belongs to is not
gathered: outside of its forward.

## Why is this bad

`fully_shard` gathers the parameters of a group when the module of that group is called, and frees them
afterwards. In between the weight is a `DTensor`, and computing with it and an ordinary activation raises
RuntimeError ("got mixed torch.Tensor and DTensor"). Call the layer, let the group be that of the module whose
forward uses the weight, or register the method.

## Example

```diff
 import torch
 import torch.distributed as dist
 import torch.nn.functional as F
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
-fully_shard(model[0])
 fully_shard(model)
 hidden = model(torch.randn(4, 8))
 again = F.linear(hidden, model[0].weight)
```

## Forms

- Found: a head that is tied to the embedding by hand.
- Found: a loss that is given the head.
- Not found: a fused loss of a library.
- Not found: rows that are looked up in the weight.

## Known limits

Only layers of `torch.nn` and the parameters of classes of the project. Silent while the group may be gathered: that
of a root is from its forward to the backward. Fused losses of libraries that are handed the weight are not
followed.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_pre_forward`, `_post_forward`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Event,
    Finding,
    Literal,
    Part,
    Trace,
    Value,
    options,
    rule,
)

from .._common.shared import Shard
from .._common.tensors import asks_for_kind, computations, shard_of, tensor_of

_FUNCTIONS = (
    *(
        f"torch.nn.functional.{name}"
        for name in "linear bilinear embedding embedding_bag conv1d conv2d conv3d layer_norm rms_norm "
        "group_norm".split()
    ),
    *(f"torch.{name}" for name in "matmul mm bmm addmm einsum".split()),
    *(f".{name}" for name in "matmul mm bmm addmm".split()),
)
_TURNED = (".t()", ".transpose()")


@rule(code="FSDP233", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Weights outside of their group's forward."""
    for event, values in computations(trace, _FUNCTIONS, ("@",)):
        if asks_for_kind(event):
            continue
        weights = [(v, s) for v in values if (s := _weight(trace, event, v)) is not None]
        others = [v for v in values if _activation(trace, v)]
        if not weights or not others:
            continue
        weight, shard = weights[0]
        yield Finding(
            at=event,
            message=f"`{weight.words()}` is computed with while the group of `{shard.module.words()}` is not "
            "gathered: it is a DTensor, the other side is not, RuntimeError",
            because=(shard.reason,),
        )


def _weight(trace: Trace, event: Event, value: Value) -> Shard | None:
    """The sharding of a weight, also of one that is turned."""
    while isinstance(value, Part) and (value.key in (".T", ".mT") or (value.operation in _TURNED)):
        value = value.owner
    found = tensor_of(trace, value)
    if found is None or found.gradient:
        return None
    return shard_of(trace, event, value)


def _activation(trace: Trace, value: Value) -> bool:
    """Whether a value is neither a constant nor made of parameters: something that flows through the model."""
    for one in options(value):
        seen: Value | None = one
        while seen is not None:
            if isinstance(seen, Literal) or tensor_of(trace, seen) is not None:
                return False
            seen = seen.owner
    return True
