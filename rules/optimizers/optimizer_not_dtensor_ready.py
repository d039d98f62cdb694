"""An optimizer that cannot work on sharded parameters is built over those of a sharded model.

## What it does

Finds `torch.optim.Adafactor` and `torch.optim.Rprop` over the parameters of a model that `fully_shard` was
applied to.

## Why is this bad

Both change tensors in place in ways for which a `DTensor` would have to change its placement: the first step
raises RuntimeError ("in-place operations that require placement changes are not supported"). Measured on
torch 2.13 and 2.14; all other dense optimizers of `torch.optim` work. On torch 2.7 and 2.9 Rprop raises,
and Adafactor makes other steps than it does on whole parameters, without a word (measured: 0.08 after three steps at a rate of 0.1).

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
+optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
 model(torch.randn(4, 8)).sum().backward()
 optimizer.step()
```

## Forms

- Found: a table of optimizers.
- Found: a class of the project, and a scaler that steps.
- Not found: a name that comes from the program's arguments.

## Known limits

Optimizers of other packages are not judged. An optimizer that is never stepped is left alone.

## References

- https://docs.pytorch.org/docs/stable/optim.html
- `torch/distributed/tensor/_ops/utils.py` ("in-place operations that require placement changes")
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import External, Finding, OptimizerBuilt, Stepped, Trace, options, rule

from .._common.parts import holding_shards
from .._common.shared import Shard

_UNFIT = ("torch.optim.Adafactor", "torch.optim.Rprop")


@rule(code="FSDP257", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Optimizers that raise at their first step."""
    for built in trace.of(OptimizerBuilt):
        cls = built.optimizer.cls
        shard = _shard(trace, built)
        if not isinstance(cls, External) or cls.name not in _UNFIT or shard is None:
            continue
        if any(built.optimizer in options(s.optimizer) for s in trace.after(built, Stepped)):
            yield Finding(
                at=built,
                message=f"`{cls.name}` cannot step over the sharded parameters of `{shard.module.words()}`: its "
                "in-place operations raise RuntimeError on DTensors",
                because=(shard.reason,),
            )


def _shard(trace: Trace, built: OptimizerBuilt) -> Shard | None:
    for parameters in built.over:
        found = holding_shards(trace, built, parameters.of)
        if found is not None and "ignored_params" not in found[0].event.options:
            return found[0]
    return None
