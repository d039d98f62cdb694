"""A module with parameters is put into a model after `fully_shard`.

## What it does

Finds new layers that are assigned to a model (or to a part of it, or appended to a list in it) after
`fully_shard` was applied to it, that are not sharded themselves, when the model is trained afterwards.

## Why is this bad

`fully_shard` manages the parameters that it finds when it is called. What comes later belongs to no group: its
gradients are reduced by nobody, nothing raises, and each rank trains a copy of its own that drifts away.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
fully_shard(model)
model.append(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
```

## Use instead

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
model.append(nn.Linear(8, 2))
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(4, 8)).sum().backward()
optimizer.step()
```

## Known limits

Silent when the new module is frozen, when its class is out of sight, and for libraries that add modules
(`get_peft_model`, `resize_token_embeddings`). There is no fix: what else happens between the two has to move too.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_init.py` (`_get_managed_states`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Assigned, Backward, Finding, Trace, rule

from ._parts import loose
from ._shared import cases, line_of, sharded, together, wrapped_by


@rule(code="FSDP212", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """New modules that no group holds."""
    for assigned in trace.of(Assigned):
        found = sharded(trace, assigned, assigned.owner)
        if found is None or next(trace.after(assigned, Backward), None) is None:
            continue
        shard, _ = found
        for guards, added in cases(assigned, assigned.value):
            if not together(shard.guards, guards) or wrapped_by(added, "ddp", "fsdp1"):
                continue
            if not loose(trace, added, shard):
                continue
            yield Finding(
                at=assigned,
                message=f"`{added.words()}` comes into the model after `fully_shard({shard.module.words()})` "
                f"on {line_of(shard.event, assigned)}: no group holds it, its gradients are not reduced and "
                "each rank trains its own copy",
                because=((shard.event, f"`{shard.module.words()}` is sharded here"),),
            )
            break
