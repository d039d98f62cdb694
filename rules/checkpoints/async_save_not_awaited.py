"""The future of `async_save` is not waited for.

## What it does

Finds `dcp.async_save` whose future is dropped, and those after which the process group is destroyed or the
next save begins before `.result()` was asked for.

## Why is this bad

Errors of the background thread surface only in `.result()`. When the process group is destroyed first, the thread
falls back to saving as a single process: every rank writes the same file, and a later load succeeds with wrong
weights. Two saves at once hang or tear the checkpoint.

## Example

```diff
 import torch.distributed as dist
 import torch.distributed.checkpoint as dcp
 from torch import nn
 from torch.distributed.checkpoint.state_dict import get_model_state_dict
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 group = dist.new_group(backend="gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-dcp.async_save(get_model_state_dict(model), checkpoint_id="step_1", process_group=group)
+saving = dcp.async_save(get_model_state_dict(model), checkpoint_id="step_1", process_group=group)
+saving.result()
 dist.destroy_process_group()
```

## Forms

- Found: a trainer that keeps the future and saves again before it is asked.
- Found: a helper function whose caller drops the future.
- Found: futures that are collected and never asked.
- Not found: a future that is asked only whether it is done.
- Not found: a future that is awaited on some paths only.

## Fix safety

Unsafe: a dropped future is asked for its result at once, which makes the save synchronous. Ask as late as you
can: before the next save and before the group is destroyed.

## Known limits

A future that is stored where unseen code can reach it is left alone. Saves over a group that is made for each of them
(`new_group` in the same function) may overlap.

## References

- https://docs.pytorch.org/docs/stable/distributed.checkpoint.html (`async_save`)
- https://docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html
- `torch/distributed/checkpoint/state_dict_saver.py`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Awaited,
    Called,
    Event,
    Finding,
    Fix,
    Future,
    GroupEnded,
    Rewrite,
    Saved,
    Trace,
    options,
    rule,
    walk,
)

from .._common.fixes import call_of
from .._common.loops import loops_around
from .._common.shared import use_of


@rule(code="FSDP307", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Asynchronous saves that are never awaited."""
    for saved in trace.of(Saved):
        if saved.future is None:
            continue
        if use_of(saved.at) == "Expr":
            yield Finding(
                at=saved,
                message="the future of `async_save` is dropped, so the checkpoint is never "
                "awaited and its errors are lost",
                fix=_await(saved),
            )
        elif _in_sight(trace, saved.future) and not _has_own_group(trace, saved):
            yield from _overtaken(trace, saved, saved.future)


_POLLED = (".done", ".add_done_callback")


def _in_sight(trace: Trace, future: Future) -> bool:
    """Whether all that happens to a future is in the trace."""
    memory = trace.memory
    if any(c.receiver is future and c.name in _POLLED for c in trace.of(Called)):
        return False
    if _read_by_closures(trace, future):
        return False
    return not trace.truncated and not any(
        holder in memory.out or holder in memory.foreign for holder in memory.holders(future)
    )


def _read_by_closures(trace: Trace, future: Future) -> bool:
    """Whether a function inside a function reads the name of the future: it may be run by unresolved code."""
    sources = {saved.at.source for saved in trace.of(Saved) if saved.future is future}
    return any(
        isinstance(inner, cst.Name) and inner.value == future.words()
        for source in sources
        for outer in walk(source.tree)
        if isinstance(outer, cst.FunctionDef)
        for nested in walk(outer.body)
        if isinstance(nested, cst.FunctionDef | cst.Lambda)
        for inner in walk(nested.body)
    )


def _overtaken(trace: Trace, saved: Saved, future: Future) -> Iterator[Finding]:
    """What comes before anybody has asked for the future's result."""
    waited = [e.order for e in trace.after(saved, Awaited) if trace.concerns(e, future)]
    first = min(waited, default=None)
    for event, said in _ends(trace, saved):
        if first is None or event.order < first:
            yield Finding(
                at=saved,
                message=f"{said} before the result of `async_save` is asked for: the checkpoint may be "
                "torn or lost",
                because=((event, "this comes first"),),
            )
            return
    if first is None and not list(trace.beside(saved, Awaited)):
        yield Finding(
            at=saved,
            message="the result of this `async_save` is never read, so its errors are lost",
        )


def _ends(trace: Trace, saved: Saved) -> Iterator[tuple[Event, str]]:
    for ended in trace.after(saved, GroupEnded):
        yield ended, "the process group is destroyed"
    for again in trace.after(saved, Saved):
        if again.future is not None:
            yield again, "the next save begins"


def _has_own_group(trace: Trace, saved: Saved) -> bool:
    """Whether a save is given a group that is made anew for each save, in the call of the function that saves: such
    saves may overlap, and are kept together to be awaited.
    """
    given = [
        called.keywords.get("process_group")
        for called in trace.of(Called)
        if called.at.node is saved.at.node and called.moment.calls == saved.moment.calls
    ]
    return any(
        made.name == "torch.distributed.new_group"
        and made.moment.calls == saved.moment.calls
        and loops_around(made) == loops_around(saved)
        for value in given
        if value is not None
        for one in options(value)
        for made in trace.giving(one)
    )


def _await(saved: Saved) -> Fix | None:
    """Ask for the result at once."""
    call = call_of(saved.at)
    if call is None:
        return None
    edit = Rewrite(saved.at.source, call, lambda new: f"{new.text}.result()")
    return Fix(
        "wait for the save", (edit,), "unsafe", "this makes the save synchronous: wait later"
    )
