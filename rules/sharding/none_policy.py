"""`mp_policy=None` is passed to `fully_shard`.

## What it does

Finds calls of `fully_shard` whose `mp_policy` is None, also when it comes from a conditional, a helper or a
dictionary of keywords.

## Why is this bad

The other options of `fully_shard` may be None; this one may not: its default is `MixedPrecisionPolicy()`, and with None
the first forward raises AttributeError. Code that has a policy only in low precision fails as soon as it runs without.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
-fully_shard(model, mp_policy=None)
+fully_shard(model)
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a policy that an option switches on.
- Found: an entry that a dictionary does not have.
- Not found: the default of `getattr` for settings that are not resolved.

## Fix safety

Safe: `mp_policy=None` is left out, which is what was meant by it and could not run. Where a name holds None there is no fix.

## Known limits

A default of None that every caller replaces is not reported, nor one in a function that the project never calls.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`init_dtype_attrs`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Arguments, Finding, Fix, Literal, Sharded, Trace, argument, dotted, rule

from .._common.fixes import call_of
from .._common.parts import sure


@rule(code="FSDP241", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Policies that are None."""
    for sharded in trace.of(Sharded):
        policies = list(sure(sharded, sharded.options.get("mp_policy")))
        if any(isinstance(one, Literal) and one.value is None for one in policies):
            sometimes = " on some paths" if len(policies) > 1 else ""
            yield Finding(
                at=sharded,
                message=f"`mp_policy` is None{sometimes}: the first forward raises AttributeError; "
                "leave it out or pass `MixedPrecisionPolicy()`",
                fix=_left_out(sharded),
            )


def _left_out(sharded: Sharded) -> Fix | None:
    """The call without the argument, when it is a written None."""
    call = call_of(sharded.at)
    given = argument(call, -1, "mp_policy")
    if call is None or given is None or dotted(given.value) != "None":
        return None
    edit = Arguments(sharded.at.source, call).remove("mp_policy")
    return Fix("leave `mp_policy` out", (edit,), "safe")
