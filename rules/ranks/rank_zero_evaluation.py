"""A sharded model is evaluated on some ranks only.

## What it does

Finds forwards of a sharded model that evaluate (under `torch.no_grad` or `inference_mode`, or after
`model.eval()`) and that only some ranks reach, because of a test of the rank.

## Why is this bad

Each forward gathers the parameters from all ranks. The ranks that do not evaluate never come, and the one
that does waits for them: the job hangs. With DDP one rank could evaluate alone. Let every rank evaluate, each
its part of the data, and let one of them print.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
+with torch.no_grad():
+    value = model(torch.randn(4, 8)).mean()
 if dist.get_rank() == 0:
-    with torch.no_grad():
-        print(model(torch.randn(4, 8)).mean())
+    print(value)
```

## Forms

- Found: a decorator that lets one rank pass.
- Found: a method of a trainer.
- Not found: a model of Transformers that generates.
- Not found: unresolved code that evaluates.

## Known limits

There is no fix: the data must be shared out. Silent when the other ranks compute something of the same kind
at the same time. Other meetings under a test of the rank, and forwards that train, are FSDP401; code behind a
`return` is FSDP402.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_pre_forward`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Trace, rule

from .._common.evaluation import evaluates
from .._common.meetings import Meeting, meets_inside, one_sided


@rule(code="FSDP411", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Evaluations that the other ranks never run."""
    if trace.truncated:  # the other ranks' call may be in what was not walked
        return
    said: set[Meeting] = set()
    for meeting, guard, at in one_sided(trace):
        if meeting not in said and evaluates(trace, meeting.event):
            said.add(meeting)
            yield Finding(
                at=at,
                message=f"{meeting.said} evaluates only when `{guard.words()}`: it needs all ranks, and the "
                "others never come",
                because=meets_inside(meeting, at),
            )
