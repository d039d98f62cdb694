"""A save in a process of its own, from a script that runs whenever it is imported.

## What it does

Finds `dcp.async_save` with `AsyncCheckpointerType.PROCESS` that the main module reaches from its top level, not
under `if __name__ == "__main__":`.

## Why is this bad

The process that is to write the checkpoint is spawned: a new interpreter imports the main module first. Without
the guard that runs the whole training again, in the middle of the first. It dies where something cannot be done
twice (a file, a port, a process started while Python imports), and `async_save` raises "Checkpoint background
process is dead" on every rank; or it waits in `init_process_group` for ranks that never come, and the save never
ends. Which of the two is decided by a race.

## Example

```diff
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
 from torch.distributed.fsdp import fully_shard

-dist.init_process_group("gloo")
-model = nn.Linear(8, 8)
-fully_shard(model)
-saving = dcp.async_save(
-    {"model": model.state_dict()},
-    checkpoint_id="step_1",
-    async_checkpointer_type=AsyncCheckpointerType.PROCESS,
-)
-saving.result()
+
+def main():
+    dist.init_process_group("gloo")
+    model = nn.Linear(8, 8)
+    fully_shard(model)
+    saving = dcp.async_save(
+        {"model": model.state_dict()},
+        checkpoint_id="step_1",
+        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
+    )
+    saving.result()
+
+
+if __name__ == "__main__":
+    main()
```

## Forms

- Found: a function that the module calls at its end, and a helper function that passes the kind on.
- Found: a kind that a switch of the program chooses.
- Not found: a program inside `try`.
- Not found: a kind that is made from its value.

## Known limits

Silent where the training starts under another condition, and where the kind of the checkpointer comes
from a setting.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`AsyncCheckpointerType`)
- https://docs.python.org/3/library/multiprocessing.html (safe importing of the main module)
- `torch/distributed/checkpoint/_async_process_executor.py` (`_AsyncCheckpointProcess`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Called, External, Finding, Layout, Site, Trace, options, rule

from .._common.shared import DCP

_PROCESS = f"{DCP}AsyncCheckpointerType.PROCESS"


@rule(code="FSDP329", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Saves that spawn a process from the top level."""
    for called in trace.calls(f"{DCP}async_save"):
        kind = called.keywords.get("async_checkpointer_type")
        spawns = kind is not None and any(
            isinstance(one, External) and one.name == _PROCESS for one in options(kind)
        )
        start = _start(called) if spawns else None
        if start is None:
            continue
        yield Finding(
            at=called,
            message="the process that writes the checkpoint imports this program first and so runs it again: "
            'put what runs it under `if __name__ == "__main__":`',
            because=((start, "this runs at every import"),),
        )


def _start(called: Called) -> Site | None:
    """The statement at the top level of a module by which all this began, when nothing is around it."""
    sites = (*called.moment.calls, called.at)
    for site in sites:
        around = [site.node, *Layout.of(site.source).ancestors(site.node)]
        if any(isinstance(a, cst.FunctionDef | cst.Lambda) for a in around):
            return None if site is sites[0] else sites[0]
        if any(isinstance(a, cst.If | cst.IfExp | cst.Try | cst.Match) for a in around):
            return None
    return sites[0]
