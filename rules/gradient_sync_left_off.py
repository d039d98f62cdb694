"""Gradient synchronisation is switched off and never on again.

## What it does

Finds `set_requires_gradient_sync(False)` on a model that is trained, when nothing ever switches it back.

## Why is this bad

While the switch is off, `backward()` keeps unsharded gradients and reduces nothing: the sharded
parameters' `grad` stays None, `optimizer.step()` skips them all, nothing is trained, and nothing raises.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(8):
    model.set_requires_gradient_sync(False)
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
model = nn.Linear(8, 8)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(8):
    model.set_requires_gradient_sync(step % 4 == 3)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
```

## Known limits

Reports only models that the project builds and never hands to code that cannot be followed.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`set_requires_gradient_sync`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Backward, Finding, SyncSwitched, Trace, rule, unwrapped

from ._shared import overlap, sharded


@rule(code="FSDP211", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Switches that stay off."""
    for switched in trace.of(SyncSwitched):
        found = sharded(trace, switched, switched.module)
        if switched.on is not False or found is None or not trace.kept(switched.module):
            continue
        shard, module = found
        backward = next(trace.after(switched, Backward), None)
        if backward is None or _switched_on(trace, switched):
            continue
        yield Finding(
            at=switched,
            message=f"gradient sync of `{module.words()}` is switched off and never on again: "
            "its gradients stay None and nothing is trained",
            because=(
                (shard.event, f"`{shard.module.words()}` is sharded here"),
                (backward, "this backward reduces no gradients"),
            ),
        )


def _switched_on(trace: Trace, off: SyncSwitched) -> bool:
    """Whether anything can switch the sync of the module, or of one around or inside it, on again."""
    return any(
        switched.on is not False
        and overlap(trace, unwrapped(switched.module), unwrapped(off.module)) is not None
        for switched in trace.of(SyncSwitched)
    )
