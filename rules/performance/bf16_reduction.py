"""Gradients of all ranks are summed in bfloat16 or float16.

## What it does

Finds `MixedPrecisionPolicy` whose `reduce_dtype` is a 16-bit type, or is left out beside a 16-bit
`param_dtype`, on a module that is trained.

## Why is this bad

Left alone, gradients are reduced in `param_dtype`. bfloat16 keeps eight bits: when a rank adds a gradient to a
sum that is 256 times as large nothing of it is left, and the more ranks there are, the larger the sum is beside
each of them. float16 keeps eleven and overflows at 65504. Nothing raises; the loss is a little worse than on fewer
ranks. The same is true of FSDP1's `MixedPrecision`. Reducing in float32 costs twice the bytes of the
reduce-scatter, which mostly hides behind the backward.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
-fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
+policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
+fully_shard(model, mp_policy=policy)
 optimizer = torch.optim.AdamW(model.parameters())
 model(torch.randn(4, 8)).square().mean().backward()
 optimizer.step()
```

## Forms

- Found: a policy that a helper function makes, for each block.
- Found: a dtype from a dictionary.
- Found: a dtype that an option chooses.
- Not found: a dtype that only the command line names.
- Not found: a model that is cast as a whole, without a policy.

## Fix safety

Unsafe: `reduce_dtype=torch.float32` is added, or takes the place of the low one. The reduce-scatter then carries
twice the bytes, and the loss is another one in its last digits.

## Known limits

How many ranks there will be is not known: on two the loss of accuracy is small. Of a dtype that settings choose the
choices must be in the program (a table, a test for each name). Silent where no optimizer is seen to step over the module.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`MixedPrecisionPolicy.reduce_dtype`)
- https://github.com/pytorch/torchtitan (`mixed_precision_reduce` is float32 there)
- `torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py` (`foreach_reduce`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Arguments,
    Called,
    Either,
    External,
    Finding,
    Fix,
    Literal,
    Trace,
    Value,
    rule,
)

from .._common.fixes import call_of
from .._common.policies import low_of, policy_of
from .._common.shared import shards
from .._common.training import optimized_after

_FLOAT32 = "torch.float32"


@rule(code="FSDP511", group="pedantic")
def check(trace: Trace) -> Iterator[Finding]:
    """Policies that sum in few bits."""
    said: set[Value] = set()
    for shard in shards(trace):
        policy = policy_of(shard)
        if policy is None or policy in said:
            continue
        if not optimized_after(trace, shard.event, shard.module, shard.guards):
            continue
        made = next(iter(trace.giving(policy)), None)
        dtype = None if made is None else _summed_in(made, policy)
        if made is None or dtype is None:
            continue
        said.add(policy)
        yield Finding(
            at=made,
            message=f"the gradients of `{shard.module.words()}` are summed over the ranks in `{dtype}`, "
            f"which loses the small ones: give `reduce_dtype={_FLOAT32}`",
            because=((shard.event, f"`{shard.module.words()}` is sharded with it here"),),
            fix=_in_float32(made, dtype),
        )


def _summed_in(made: Called, policy: Value) -> str | None:
    """The low dtype in which gradients are reduced, on every path or on one."""
    given = made.argument(1, "reduce_dtype")
    if made.open or (given is not None and not isinstance(given, External | Literal | Either)):
        return None
    name = "param_dtype" if given is None or isinstance(given, Literal) else "reduce_dtype"
    low = low_of(policy, name, made.guards)
    return None if low is None else low[0]


def _in_float32(made: Called, dtype: str) -> Fix | None:
    """The argument in float32, where torch is called by its name beside it."""
    call = call_of(made.at)
    if call is None or (len(call.args) > 1 and call.args[1].keyword is None):
        return None
    source = made.at.source
    written = {source.code(a.value) for a in call.args}
    if dtype not in written:
        return None
    arguments = Arguments(source, call)
    if arguments.open:
        return None
    edit = arguments.set("reduce_dtype", _FLOAT32)
    return Fix(
        "sum gradients in float32", (edit,), "unsafe", "the reduce-scatter carries twice the bytes"
    )
