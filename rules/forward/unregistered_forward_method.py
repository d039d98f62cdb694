"""A method other than `forward` computes with the parameters of a sharded module.

## What it does

Finds calls from outside of a sharded module's own method (`encode`, `score`, …) that runs layers which
belong to the module's own group, when the method was not registered.

## Why is this bad

The all-gather hooks of `fully_shard` run around `module(…)` only. Another method finds `DTensor` shards in
the layers that it uses: "got mixed torch.Tensor and DTensor". `register_fsdp_forward_method` puts the same
hooks around the method.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
-from torch.distributed.fsdp import fully_shard
+from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method


 class Encoder(nn.Module):
     def __init__(self):
         super().__init__()
         self.layer = nn.Linear(8, 8)

     def encode(self, x):
         return self.layer(x)


 dist.init_process_group("gloo")
 model = Encoder()
 fully_shard(model)
+register_fsdp_forward_method(model, "encode")
 features = model.encode(torch.randn(4, 8))
```

## Forms

- Found: a method of the model that computes the loss, called by a trainer.
- Found: a method that is looked up by its name.
- Not found: a method that uses a weight without a layer (FSDP233 finds it).

## Fix safety

Unsafe: the method is registered below the `fully_shard` call. Look whether the method is also called from
within `forward`, where the hooks run already.

## Known limits

Only methods of classes of the project, and only what they compute by calling layers: a weight used by hand
(`x @ self.weight`) is not seen. Silent between a forward of the root and the next backward: the root's own
parameters stay gathered for that long, unless `reshard_after_forward=True` says otherwise. `generate` of a
library calls the module itself and is fine.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`register_fsdp_forward_method`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Finding,
    Fix,
    Forward,
    InsertAfter,
    Registered,
    Trace,
    Value,
    name_for,
    rule,
)

from .._common.fixes import call_of, first_argument, once, own_statement, path_text
from .._common.shared import Shard, has_parameters, method_of, sharded, shards_before
from .._common.tensors import may_be_whole


@rule(code="FSDP204", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Methods that compute without the hooks."""
    for entered in trace.of(Forward):
        if entered.how in ("call", "forward") or entered.how.startswith("__"):
            continue
        found = sharded(trace, entered, entered.module)
        if found is None or _hooks_may_run(trace, entered, *found):
            continue
        shard, module = found
        used = _computed_inside(trace, entered, module, shard)
        if used is None or may_be_whole(trace, entered, shard):
            continue
        said = f"{module.words()}.{entered.how}"
        yield Finding(
            at=entered,
            message=f"`{said}(…)` runs `{used.module.words()}` with sharded parameters: only "
            f"`{module.words()}(…)` gathers them; register it with `register_fsdp_forward_method`",
            because=(
                shard.reason,
                (used, f"`{used.module.words()}` computes here without the hooks"),
            ),
            fix=_register(trace, entered, shard, module),
        )


def _hooks_may_run(trace: Trace, entered: Forward, shard: Shard, module: Value) -> bool:
    """Whether the method is registered, or called from within a method of the sharded module."""
    running = entered.moment.inside
    if any(method_of(f, module) or method_of(f, shard.module) for f in running):
        return True
    return any(
        registered.method in (None, entered.how) and trace.concerns(registered, module)
        for registered in trace.of(Registered)
    )


def _computed_inside(trace: Trace, entered: Forward, module: Value, shard: Shard) -> Forward | None:
    """A layer of the module's own group that the method runs before any hook of the group has run."""
    depth = len(entered.moment.calls)
    for forward in trace.after(entered, Forward):
        path = forward.moment.calls
        if forward.at.node is entered.at.node and path == entered.moment.calls:
            break  # a framework's call runs one method of the module after the other
        if len(path) <= depth or path[depth].node is not entered.at.node:
            if path[:depth] != entered.moment.calls[: len(path)]:
                break
            continue
        layer = forward.module
        if forward.how not in ("call", "forward"):
            continue  # another method: what it runs comes after it
        own = trace.inside(layer, module) and _group(trace, forward, layer) is shard.module
        hooked = any(
            f.name in ("forward", "__call__") and method_of(f, shard.module)
            for f in forward.moment.inside[depth:]
        )
        if own and not hooked and layer is not module and has_parameters(trace, layer):
            return forward
    return None


def _group(trace: Trace, event: Forward, layer: Value) -> Value | None:
    """The sharded module in whose group a layer's parameters are: the innermost one around it."""
    innermost: Value | None = None
    for shard in shards_before(trace, event):
        if trace.inside(layer, shard.module) and (
            innermost is None or trace.inside(shard.module, innermost)
        ):
            innermost = shard.module
    return innermost


def _register(trace: Trace, entered: Forward, shard: Shard, module: Value) -> Fix | None:
    """Register the method below the call that shards its module."""
    site = shard.event.at
    call = call_of(site)
    name = "" if call is None else path_text(site, first_argument(call))
    if not name or shard.module is not module or not once(trace, shard):
        return None
    if own_statement(site) is None:
        return None
    register = name_for(
        site.source, site.node, "torch.distributed.fsdp.register_fsdp_forward_method"
    )
    text = f'{register.text}({name}, "{entered.how}")'
    edits = (InsertAfter(site.source, site.node, text), *register.edits)
    return Fix(f"register `{entered.how}`", edits, "unsafe", "look who else calls the method")
