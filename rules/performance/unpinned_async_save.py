"""Each asynchronous save copies the model into host memory that is asked for anew, and not pinned.

## What it does

Finds `dcp.async_save` without an `async_stager`, again and again in one loop.

## Why is this bad

By default, `async_save` makes a stager for each save and throws it away: training stops while the shards
are copied from the GPU into ordinary memory that the system has to find first. A `DefaultStager` that is made
once and handed to every save keeps its buffers, pins them and copies in a stream of its own, so that training
goes on while the copy is made.

## Example

```diff
 import torch
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
+from torch.distributed.checkpoint.staging import DefaultStager
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("cpu:gloo,cuda:nccl")
 model = nn.Linear(8, 8)
 fully_shard(model)
+stager = DefaultStager()
 for step in range(1000):
     model(torch.randn(4, 8)).square().mean().backward()
-    saving = dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"step_{step}")
-    saving.result()
+    saving = dcp.async_save(
+        {"model": model.state_dict()}, checkpoint_id=f"step_{step}", async_stager=stager
+    )
+    saving.upload_completion.result()
+stager.close()
```

## Forms

- Found: a method of a trainer that saves.
- Not found: a stager that is made anew for each save.

## Known limits

Scripts whose process groups are gloo's alone are left alone: pinned memory needs a GPU, and there `DefaultStager()`
raises. A CPU shows the new copies; that the pinned ones are faster it does not. There is no fix: with a stager
that copies in the background `async_save` returns two futures (`staging_completion` and `upload_completion`),
and the first must be waited for before the next step of the optimizer.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`async_save`, `DefaultStager`)
- `torch/distributed/checkpoint/staging.py` (`StagingOptions`)
- `torch/distributed/checkpoint/state_dict_saver.py` (`async_save`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Called, Finding, Instance, Literal, Part, Saved, Trace, Value, rule

from .._common.loops import loops_around, only_cpu
from .._common.shared import class_name, is_none, state_shard

_OWN_FILES = ("FileSystemWriter", "FsspecWriter", "HuggingFaceStorageWriter")


@rule(code="FSDP507", group="perf", since="2.9")
def check(trace: Trace) -> Iterator[Finding]:
    """Saves that bring no stager."""
    if only_cpu(trace):
        return
    for saved in trace.of(Saved):
        if saved.future is None or not loops_around(saved):
            continue
        if not any(state_shard(trace, saved, state) is not None for state in saved.states):
            continue
        if any(_brings_none(called) for called in _calls(trace, saved)):
            yield Finding(
                at=saved,
                message="each `async_save` copies the shards into new, unpinned memory while training waits; "
                "hand all of them one `DefaultStager`",
            )


def _calls(trace: Trace, saved: Saved) -> Iterator[Called]:
    return (c for c in trace.calls(saved.via) if c.at.node is saved.at.node)


def _brings_none(called: Called) -> bool:
    """Whether a save surely has no stager: of its own, or in a writer."""
    if called.open or not is_none(called.keywords.get("async_stager")):
        return False
    writer = called.keywords.get("storage_writer")
    if is_none(writer):
        return True
    return (
        isinstance(writer, Instance)
        and class_name(writer).rpartition(".")[2] in _OWN_FILES
        and not _keeps(writer)
    )


def _keeps(writer: Value) -> bool:
    """Whether a writer may keep the copies that it makes."""
    asked = writer.part(".cache_staged_state_dict")
    if isinstance(asked, Literal):
        return bool(asked.value)
    return not (isinstance(asked, Part) and asked.owner is writer)
