"""An optimizer that cannot work on sharded parameters is built over those of a sharded model.

## What it does

Finds `torch.optim.Adafactor` and `torch.optim.Rprop` over the parameters of a model that `fully_shard` was
applied to.

## Why is this bad

Both change tensors in place in ways for which a `DTensor` would have to change its placement: the first step
raises RuntimeError ("in-place operations that require placement changes are not supported"). Measured on
torch 2.13; all other dense optimizers of `torch.optim` work.

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

Found: a table of optimizers.

```python
OPTIMIZERS = {"adafactor": torch.optim.Adafactor, "adamw": torch.optim.AdamW}


class Trainer:
    def __init__(self, model, name):
        self.model = fully_shard(model)
        self.optimizer = OPTIMIZERS[name](model.parameters(), lr=1e-2)

    def step(self):
        self.model(torch.randn(4, 8)).sum().backward()
        self.optimizer.step()


dist.init_process_group("gloo")
Trainer(nn.Linear(8, 8), "adafactor").step()
```

Found: a class of the project, and a scaler that steps.

```python
class Own(torch.optim.Rprop):
    pass


dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = Own(model.parameters())
scaler = torch.amp.GradScaler("cpu")
scaler.scale(model(torch.randn(4, 8)).sum()).backward()
scaler.step(optimizer)
```

Not found: a name that comes from the program's arguments.

```python
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", default="Rprop")
args = parser.parse_args()
dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = getattr(torch.optim, args.optimizer)(model.parameters())
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
```

## Known limits

Optimizers of other packages are not judged. An optimizer that is never stepped is left alone.

## References

- https://docs.pytorch.org/docs/stable/optim.html
- `torch/distributed/tensor/_ops/utils.py` ("in-place operations that require placement changes")
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import External, Finding, OptimizerBuilt, Stepped, Trace, options, rule

from .._common.shared import Shard, sharded

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
                because=((shard.event, f"`{shard.module.words()}` is sharded here"),),
            )


def _shard(trace: Trace, built: OptimizerBuilt) -> Shard | None:
    for parameters in built.over:
        found = sharded(trace, built, parameters.of)
        if found is not None and "ignored_params" not in found[0].event.options:
            return found[0]
    return None
