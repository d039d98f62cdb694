"""A `DistributedSampler` is used in several epochs without `set_epoch`.

## What it does

Finds `DistributedSampler` (that shuffles, or does so where a setting says it) whose loader is walked again and again in
a loop, in a script that shards a model and never calls `set_epoch` of it, or with one constant only (`set_epoch(0)` in a
constructor); that of another sampler does not count.

## Why is this bad

The sampler shuffles by its seed and the number of the epoch, so that all ranks agree on one order without
talking to each other. Without `set_epoch` the number stays 0 and every epoch has the same order, the same
batches in the same sequence. Nothing raises; training is a little worse.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard
 from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
 data = TensorDataset(torch.randn(32, 8))
 sampler = DistributedSampler(data)
 loader = DataLoader(data, batch_size=4, sampler=sampler)
 for epoch in range(3):
+    sampler.set_epoch(epoch)
     for (x,) in loader:
         model(x).square().mean().backward()
```

## Forms

- Found: a trainer whose method walks the loader once.
- Found: an iterator that is started again at its end.
- Found: an epoch that is always the same.
- Not found: `itertools.cycle`, which repeats the batches of the first epoch.
- Not found: a sampler of the project that inherits from it.

## Fix safety

Unsafe: `loader.sampler.set_epoch(epoch)` becomes the first statement of the loop around the walk, where both
are in one function. The order of the data changes from the second epoch on.

## Known limits

Silent when `set_epoch` is called with what is no constant on something that may be the sampler or what holds it, when the sampler or the loader is handed to code that
cannot be followed, and when a backward is not seen in the walk. Only samplers of PyTorch itself are judged.

## References

- https://docs.pytorch.org/docs/stable/data.html (`DistributedSampler`)
- `torch/utils/data/distributed.py` (`set_epoch`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Called,
    Event,
    Finding,
    Fix,
    InsertBefore,
    Layout,
    Literal,
    Part,
    Sharded,
    Trace,
    Value,
    options,
    rule,
)

from .._common.fixes import path_text
from .._common.origins import SAMPLERS
from ._common.data import LOADERS, loop_of, out_of_sight, trains, walks


@rule(code="FSDP410", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Samplers that shuffle alike in every epoch."""
    if not trace.of(Sharded) or trace.truncated:
        return
    for built in trace.calls(*SAMPLERS):
        if not _shuffles(built) or out_of_sight(trace, built.result, built.guards):
            continue
        if _may_learn_the_epoch(trace, built.result):
            continue
        for loader in trace.calls(*LOADERS):
            given = loader.argument(3, "sampler")
            if (
                given is None
                or built.result not in options(given)
                or out_of_sight(trace, loader.result, loader.guards)
            ):
                continue
            walk = _walked_again(trace, loader.result)
            if walk is None:
                continue
            yield Finding(
                at=built,
                message=f"`{built.result.words()}` never learns the epoch, so `{loader.result.words()}` repeats the same "
                f"order in each{_where(built)}; call `set_epoch` before each epoch",
                because=((walk, "it is walked here, in every epoch"),),
                fix=_with_set_epoch(walk),
            )
            break


def _may_learn_the_epoch(trace: Trace, sampler: Value) -> bool:
    """Whether `set_epoch` may be called of a sampler, with more than one constant."""
    epochs = [called.argument(0, "epoch") for called in _telling(trace, sampler)]
    constants = {one.value for one in epochs if isinstance(one, Literal)}
    return len(constants) > 1 or not all(isinstance(one, Literal) for one in epochs)


def _telling(trace: Trace, sampler: Value) -> Iterator[Called]:
    """The calls of `set_epoch` of a sampler, of its loader, or of something that is neither of another."""
    loaders = {c.result: c.argument(3, "sampler") for c in trace.calls(*LOADERS)}
    others = {c.result for c in trace.calls(*SAMPLERS)} - {sampler}
    for called in trace.calls(".set_epoch"):
        for one in () if called.receiver is None else options(called.receiver):
            loader = one.owner if isinstance(one, Part) and one.key == ".sampler" else one
            meant = loaders.get(loader, one) if loader is not None else one
            if meant is None or not all(v in others for v in options(meant)):
                yield called


def _shuffles(built: Called) -> bool:
    """Whether a sampler shuffles, or does so where the configuration says it."""
    shuffle = built.argument(3, "shuffle")
    return not built.open and not (isinstance(shuffle, Literal) and not shuffle.value)


def _where(built: Called) -> str:
    """The setting that decides, where one does."""
    shuffle = built.argument(3, "shuffle")
    return "" if shuffle is None or isinstance(shuffle, Literal) else f" where `{shuffle.words()}`"


def _walked_again(trace: Trace, loader: Value) -> Event | None:
    """A walk over a loader that a loop around it repeats, with a backward in it."""
    found = walks(trace, loader)
    for first in found:
        for again in found:
            if again.order <= first.order or again.at.node is not first.at.node:
                continue
            if _path(again) == _path(first) and trains(trace, first):
                return first
    return None


def _path(event: Event) -> list[cst.CSTNode]:
    return [site.node for site in event.moment.calls]


def _with_set_epoch(walk: Event) -> Fix | None:
    """``loader.sampler.set_epoch(epoch)`` at the head of the loop around the walk."""
    loop, source = loop_of(walk), walk.at.source
    if loop is None:
        return None
    outer = next((a for a in Layout.of(source).ancestors(loop) if not _is_block(a)), None)
    if not isinstance(outer, cst.For) or not isinstance(outer.target, cst.Name):
        return None
    called = outer.iter
    if not isinstance(called, cst.Call) or source.code(called.func) not in ("range", "trange"):
        return None
    iterable: cst.BaseExpression = loop.iter
    while isinstance(iterable, cst.Call) and iterable.args:
        if source.code(iterable.func) == "zip" and len(iterable.args) > 1:
            return None  # it may be any of them
        iterable = iterable.args[0].value
    name = path_text(walk.at, iterable)
    first = outer.body.body[0] if outer.body.body else None
    if not name or not isinstance(first, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        return None
    text = f"{name}.sampler.set_epoch({outer.target.value})"
    edit = InsertBefore(source, first, text)
    return Fix("tell the sampler the epoch", (edit,), "unsafe", "the order of the data changes")


def _is_block(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.IndentedBlock)
