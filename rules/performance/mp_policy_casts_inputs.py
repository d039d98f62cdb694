"""Positions, timesteps or tables of angles are cast to bfloat16 on their way into a sharded module.

## What it does

Finds modules that are sharded with a low `param_dtype` and called with float32 numbers made by `torch.arange`,
`linspace` or `randint`, or with tables made by `cos`, `sin` or `outer`.

## Why is this bad

`MixedPrecisionPolicy` casts every floating-point input of a module to `param_dtype` unless `cast_forward_inputs=False`
is given; FSDP1 did so at the root only. bfloat16 has eight bits: position 299 arrives as 300, timestep 999 as
1000, and neighbours of a table of angles become equal. Nothing raises: long positions simply become equal.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


 class Block(nn.Module):
     def __init__(self):
         super().__init__()
         self.layer = nn.Linear(8, 8)

     def forward(self, x, positions):
         return self.layer(x) + positions[:, None].cos().to(x.dtype)


 dist.init_process_group("gloo")
 block = Block()
-fully_shard(block, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
-block(torch.randn(300, 8), torch.arange(300).float())
+policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
+fully_shard(block, mp_policy=policy)
+block(torch.randn(300, 8).bfloat16(), torch.arange(300).float())
```

## Forms

- Found: a batch that is given by its keys.
- Found: a table that the model hands to each block.
- Not found: positions that a data set gives.

## Known limits

What the module does with the numbers is not judged: one that needs eight bits of them only loses nothing. Complex
tables (`torch.polar`) and integers are never cast and are fine. Numbers that come from a data set or out of a
function that cannot be followed are not seen. There is no fix: without the cast other inputs must have the right
dtype already.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`MixedPrecisionPolicy`)
- https://github.com/pytorch/torchtitan/issues/2881
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_cast_forward_inputs`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Called,
    External,
    Finding,
    Guards,
    Literal,
    Part,
    Returned,
    Trace,
    Value,
    options,
    rule,
)

from .._common.policies import LOW, low_of, policy_of
from .._common.shared import sharded

_FLOATS = ("torch.cos", "torch.sin", "torch.outer", "torch.linspace", "torch.logspace")
_INTEGERS = ("torch.arange", "torch.randint")
_FLOAT32 = ("torch.float32", "torch.float", "torch.float64", "torch.double")
_LOWERED = (".bfloat16()", ".half()")


@rule(code="FSDP509", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Inputs that lose their bits."""
    made = {c.result: c for c in trace.of(Called) if c.name in (*_FLOATS, *_INTEGERS)}
    casts = {c.receiver: c for c in trace.calls(".to") if c.receiver is not None}
    said: set[object] = set()
    for returned in trace.of(Returned) if made else ():
        found = sharded(trace, returned, returned.module, itself=True)
        dtype = None if found is None else _cast_to(trace, policy_of(found[0]), returned.guards)
        if found is None or dtype is None or returned.at.node in said:
            continue
        for value in returned.given:
            if any(_is_exact(one, made, casts) for one in options(value)):
                said.add(returned.at.node)
                yield Finding(
                    at=returned,
                    message=f"`{value.words()}` is cast from float32 to `{dtype}` on its way into "
                    f"`{found[1].words()}` and keeps a few bits only; give `cast_forward_inputs=False`",
                    because=((found[0].event, "its policy casts all inputs"),),
                )
                break


def _cast_to(trace: Trace, policy: Value | None, here: Guards) -> str | None:
    """The low dtype to which a policy casts inputs, on every path or on one."""
    made = next(iter(trace.giving(policy)), None)
    low = low_of(policy, "param_dtype", here)
    if made is None or made.open or low is None:
        return None
    given = made.argument(3, "cast_forward_inputs")
    return low[0] if given is None or (isinstance(given, Literal) and given.value is True) else None


def _is_exact(value: Value, made: dict[Value, Called], casts: dict[Value, Called]) -> bool:
    """Whether a value surely is a float32 tensor of many different numbers."""
    floating = False
    seen: Value | None = value
    while seen is not None and seen not in made:
        key = seen.operation or seen.key
        if not isinstance(seen, Part) or key in _LOWERED:
            return False
        if key == ".to()":
            to = casts.get(seen.owner)
            asked = () if to is None else (*to.arguments, *to.keywords.values())
            names = [v.name for v in asked if isinstance(v, External)]
            if any(name in LOW for name in names) or not names:
                return False
            floating = floating or any(name in _FLOAT32 for name in names)
        floating = floating or key in (".float()", ".double()", ".cos()", ".sin()", "/")
        seen = seen.owner
    return seen is not None and (floating or _is_float(made[seen]))


def _is_float(maker: Called) -> bool:
    asked = maker.keywords.get("dtype")
    if isinstance(asked, External):
        return asked.name in _FLOAT32
    return asked is None and maker.name in _FLOATS
