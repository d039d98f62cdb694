"""A model is cast to the dtype of its mixed-precision policy before it is sharded, and trained.

## What it does

Finds models that are cast by `.half()`, `.bfloat16()` or `.to(dtype)`, or loaded by `from_pretrained(…,
torch_dtype=…)`, in a 16-bit dtype, then sharded with a `MixedPrecisionPolicy` of the same `param_dtype`, and
trained.

## Why is this bad

The policy's promise is to compute in 16 bits and to keep the weights and the optimizer's state in the dtype
that the model had when it was sharded. That is 16 bits here: small updates are rounded away, Adam's moments
are coarse. Shard the float32 model; the policy does the rest.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

 dist.init_process_group("gloo")
-model = nn.Linear(8, 8).bfloat16()
+model = nn.Linear(8, 8)
 fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
 optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: a trainer that uses one dtype for both.
- Found: a model of Transformers that is loaded in 16 bits.
- Not found: layers that are made in 16 bits.
- Not found: a dtype that an argument of the program chooses.

## Fix safety

Unsafe: the cast goes. The shards and the optimizer's state need twice the memory then; a checkpoint may hold
16-bit weights.

## Known limits

Silent where parameters are frozen or adapters are added (a base model in 16 bits is usual there), for
policies that cannot be resolved, and when the model is cast back.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`MixedPrecisionPolicy`)
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`init_dtype_attrs`: `orig_dtype`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Event,
    External,
    Finding,
    Fix,
    Moved,
    Trace,
    Value,
    options,
    rule,
    unwrapped,
)

from .._common.casts import lowered, lowered_to, without_cast
from .._common.parts import frozen
from .._common.policies import dtype_of, policy_of
from .._common.shared import Shard, overlap, shards_after, together
from .._common.training import optimized_after

_FLOAT32 = ("float", "double")


@rule(code="FSDP222", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Weights that were lowered too early."""
    for event, module, dtype in lowered(trace):
        shard = _sharded_alike(trace, event, module, dtype)
        if shard is None or frozen(trace, module) or any(trace.calls("peft.get_peft_model")):
            continue
        if _cast_back(trace, event, module):
            continue
        if not optimized_after(trace, shard.event, module, shard.guards):
            continue
        yield Finding(
            at=event,
            message=f"`{module.words()}` is in `{dtype}` when it is sharded, so its policy keeps no float32 "
            "weights: the optimizer updates 16-bit ones",
            because=((shard.event, f"`{shard.module.words()}` is sharded here, with that dtype"),),
            fix=_fix(event),
        )


def _sharded_alike(trace: Trace, event: Event, module: Value, dtype: str) -> Shard | None:
    """The later sharding of a module with a policy of the dtype that it has already."""
    for shard in shards_after(trace, event):
        if not trace.inside(shard.module, module) or not together(shard.guards, event.guards):
            continue
        if dtype_of(policy_of(shard), "param_dtype") == dtype:
            return shard
    return None


def _cast_back(trace: Trace, event: Event, module: Value) -> bool:
    return any(
        lowered_to(later) is None
        and (later.how in _FLOAT32 or any(_is_float32(v) for v in later.to))
        and overlap(trace, unwrapped(later.module), module) is not None
        for later in trace.after(event, Moved)
    )


def _is_float32(value: Value) -> bool:
    return any(
        not isinstance(v, External) or v.name == "torch.float32" for v in options(value)
    ) and (any(isinstance(v, External) for v in options(value)))


def _fix(event: Event) -> Fix | None:
    if not isinstance(event, Moved):
        return None
    note = "the shards and the optimizer's state need twice the memory then"
    return without_cast(event, "leave the model in float32", note)
