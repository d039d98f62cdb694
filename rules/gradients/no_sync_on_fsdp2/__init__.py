"""`no_sync()` is called on a sharded model, which has no such method.

## What it does

Finds `model.no_sync()` and `hasattr(model, "no_sync")` for a model that `fully_shard` was applied to.

## Why is this bad

`FSDPModule` has no `no_sync`: the call raises AttributeError, and a branch behind `hasattr` is silently
dead, so that every micro-batch communicates. Gradient accumulation without communication is switched by
`set_requires_gradient_sync(flag)` before the backward of each micro-batch.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-with model.no_sync():
-    model(torch.randn(4, 8)).sum().backward()
+model.set_requires_gradient_sync(False)
 model(torch.randn(4, 8)).sum().backward()
+model.set_requires_gradient_sync(True)
+model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a choice between `no_sync()` and nothing, asked by `hasattr`.
- Found: a context manager of the project around it.
- Not found: the method of FSDP1's class, to which the model is handed.

## Fix safety

Unsafe: the block becomes two switches around its statements, and an exception between them leaves the
synchronisation off. Safe where the script chooses between `no_sync()` and `nullcontext()` in one expression
and every backward of the script runs inside the block: then one switch before it says it each time. In a file
that is not the script itself it stays unsafe: others may come there with a model of another kind.

## Known limits

There is no fix where the model is not surely sharded whenever the block is reached, where the block is left by
`return`, `break` or `continue`, where the backward runs in code that cannot be followed, and where the context
manager comes from a helper. A branch that tests for DDP, or for anything that the sharded branch does not test, is believed to be
about another model. `hasattr` and `getattr` with a default are judged only where a backward runs: without one, nothing has to be
kept back.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`set_requires_gradient_sync`)
- `torch/distributed/fsdp/_fully_shard/_fully_shard.py` (`FSDPModule`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Called,
    Event,
    Finding,
    Literal,
    Site,
    SyncPaused,
    Trace,
    Value,
    options,
    rule,
    walk,
)

from ..._common.shared import serves_both, sharded, wrapped_before
from .sync import switched_instead


@rule(code="FSDP210", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Asking a sharded model for ``no_sync``."""
    for event, asked, happens in _asked(trace):
        found = sharded(trace, event, asked)
        if found is None or wrapped_before(trace, event, found[1], "ddp", "fsdp1"):
            continue
        shard, module = found
        if not isinstance(event, SyncPaused) and serves_both(trace, module):
            continue
        yield Finding(
            at=_read(event),
            message=f"`{module.words()}` is sharded by `fully_shard` and has no `no_sync`: {happens}; "
            "use `set_requires_gradient_sync`",
            because=(shard.reason,),
            fix=switched_instead(trace, event) if isinstance(event, SyncPaused) else None,
        )


def _asked(trace: Trace) -> Iterator[tuple[Event, Value, str]]:
    tested = list(_tested(trace))
    defaulted = {id(asked) for called, asked in tested if called.name == "builtins.getattr"}
    for paused in trace.of(SyncPaused):
        if _is_method_call(paused) or not any(id(o) in defaulted for o in options(paused.module)):
            yield paused, paused.module, "asking for it raises AttributeError"
    if not trace.of(Backward):
        return  # there are no gradients to keep back: whatever it is told will do
    for called, asked in tested:
        if called.name == "builtins.hasattr":
            yield called, asked, "this is always false and its branch is dead"
        else:
            yield called, asked, "this is always the default"


def _tested(trace: Trace) -> Iterator[tuple[Called, Value]]:
    """Where the script asks by name for what may not be there."""
    for called in trace.calls("builtins.hasattr", "builtins.getattr"):
        named = called.argument(1, "name")
        if isinstance(named, Literal) and named.value == "no_sync":
            if called.name == "builtins.hasattr" or len(called.arguments) > 2:
                yield called, called.arguments[0]


def _is_method_call(event: Event) -> bool:
    call = event.at.node
    return isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute)


def _read(event: Event) -> Event | Site:
    """Where the method is asked for: elsewhere than at its call when the script keeps it under a name."""
    if not isinstance(event, SyncPaused) or _is_method_call(event):
        return event
    found = [one for one in walk(event.at.source.tree) if _names_it(one)]
    return Site(event.at.source, found[0], found[0]) if len(found) == 1 else event


def _names_it(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value == "no_sync"
