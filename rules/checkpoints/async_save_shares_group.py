"""A background save uses the process group of the training that goes on meanwhile.

## What it does

Finds `dcp.async_save` without a `process_group` where the default group was started on gloo alone and the ranks
communicate (a forward or backward of a sharded model, any collective) before the save's result is asked for.

## Why is this bad

The thread that writes the checkpoint coordinates the ranks by collectives of its own. On one gloo group they get
between those of the training: each rank counts its collectives, and the threads of the ranks do not come at the same
moment. A gather of the save meets an all-gather of the model, and both wait until the timeout, or
gloo aborts the process because the sizes differ. Short saves hide it. Where training runs on NCCL the save has gloo
for itself and all is well.

## Example

```diff
 import torch
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
+saves = dist.new_group(backend="gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-saving = dcp.async_save({"model": model.state_dict()}, checkpoint_id="step_1")
+saving = dcp.async_save(
+    {"model": model.state_dict()}, checkpoint_id="step_1", process_group=saves
+)
 model(torch.randn(4, 8)).sum().backward()
 saving.result()
```

## Forms

- Found: a trainer that asks for the result before its next save.
- Found: another collective.
- Not found: a backend that an argument of the program names.
- Not found: a group of the save's own that other collectives use too.

## Fix safety

Unsafe: a second group of all ranks is made where the first is started. There is a fix where both calls are in
one function or at the top of one file.

## Known limits

A group whose backend is not written in the script, and one with NCCL beside gloo, are taken to be right. Silent
where the future goes where it cannot be followed.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`async_save`)
- `torch/distributed/checkpoint/_async_thread_executor.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Arguments,
    Awaited,
    Backward,
    Called,
    Collective,
    Event,
    Finding,
    Fix,
    Forward,
    GroupEnded,
    InsertAfter,
    Literal,
    Saved,
    Sharded,
    Trace,
    name_for,
    rule,
)

from .._common.fixes import call_of, free_name, sites_together, stands_alone
from .._common.shared import sharded, together
from ._common.checkpoints import has_own_group

_INIT = "torch.distributed.init_process_group"


@rule(code="FSDP318", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Background saves in the middle of other traffic."""
    for saved in trace.of(Saved):
        if saved.future is None or has_own_group(trace, saved):
            continue
        started = _gloo(trace, saved)
        meanwhile = None if started is None else _meanwhile(trace, saved)
        if started is None or meanwhile is None:
            continue
        yield Finding(
            at=saved,
            message="the save in the background uses the group that the ranks train by, and training goes on before "
            "it is done: their collectives meet and hang; give it a `process_group` of its own",
            because=(
                (started, "the group, on gloo alone"),
                (meanwhile, "the ranks communicate here"),
            ),
            fix=_with_own_group(saved, started),
        )


def _gloo(trace: Trace, saved: Saved) -> Called | None:
    """The start of the default group on gloo alone."""
    ended = max((e.order for e in trace.before(saved, GroupEnded)), default=-1)
    for called in trace.before(saved, Called):
        if called.name == _INIT and called.order > ended:
            backend = called.argument(0, "backend")
            gloo = isinstance(backend, Literal) and backend.value in ("gloo", "cpu:gloo")
            return called if gloo and together(called.guards, saved.guards) else None
    return None


def _meanwhile(trace: Trace, saved: Saved) -> Event | None:
    """The first thing all ranks do together before the save is surely awaited."""
    if saved.future is None or next(trace.escapes(saved.future), None) is not None:
        return None
    awaited = [e.order for e in trace.after(saved, Awaited) if trace.concerns(e, saved.future)]
    until = min(awaited, default=None)
    found: list[Event] = [
        forward
        for forward in trace.after(saved, Forward)
        if sharded(trace, forward, forward.module) is not None
    ]
    found += [b for b in trace.after(saved, Backward) if any(trace.before(b, Sharded))]
    found += [c for c in trace.after(saved, Collective) if c.at.node is not saved.at.node]
    found = [e for e in found if together(e.guards, saved.guards)]
    first = min(found, key=lambda event: event.order, default=None)
    return None if first is None or (until is not None and first.order > until) else first


def _with_own_group(saved: Saved, started: Called) -> Fix | None:
    """A group for the saves below the start of the first one."""
    mine, theirs = sites_together(saved, started)
    call, start = call_of(saved.at), call_of(started.at)
    if call is None or start is None or mine.node is not call or theirs.node is not start:
        return None
    if mine.source is not theirs.source or stands_alone(theirs) is None:
        return None
    if saved.calls != started.calls:
        return None
    name = free_name(theirs, "saves", "saving_group")
    new = name_for(theirs.source, start, "torch.distributed.new_group")
    edits = (
        InsertAfter(theirs.source, start, f'{name} = {new.text}(backend="gloo")'),
        Arguments(mine.source, call).add("process_group", name),
        *new.edits,
    )
    return Fix("save by a group of its own", edits, "unsafe", "all ranks make a second group")
