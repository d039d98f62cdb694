"""`forward` of a sharded module is called directly, past the hooks that gather its parameters.

## What it does

Finds calls of `.forward(…)` on a module that `fully_shard` was applied to, or on a module of its group
while no forward of the sharded one is running; also of `torch.compile(model.forward)`.

## Why is this bad

The hooks that all-gather the parameters hang on `module(…)`. `module.forward(…)` runs without them and
computes with `DTensor` shards: "got mixed torch.Tensor and DTensor". Under FSDP1 the wrapper's own
`forward` was legal.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-loss = model.forward(torch.randn(4, 8)).sum()
+loss = model(torch.randn(4, 8)).sum()
```

## Forms

- Found: a block that is sharded by itself, through an attribute.
- Found: `forward` handed to a function that calls it.
- Found: `forward` compiled in place of the module.
- Not found: the function of the class, to which the module is handed.

## Fix safety

Safe: the call goes to the module itself, which runs the same `forward` between its hooks.

## Known limits

Inside the methods of the module's own class (`self.forward(x)`) it depends on who calls the method: found where a script
calls it by its name, or where it is a class method; silent where the module was called, the method is registered, or its
caller is not known, see FSDP204.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_register_group_forward_hooks`)
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import (
    Finding,
    Fix,
    Forward,
    Function,
    Instance,
    Registered,
    Rewrite,
    Site,
    Trace,
    Value,
    rule,
)

from .._common.fixes import call_of, receiver_of
from .._common.shared import method_of, sharded, wrapped_before


@rule(code="FSDP203", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Direct calls of a sharded module's ``forward``."""
    for forward in trace.of(Forward):
        if forward.how != "forward":
            continue
        found = sharded(trace, forward, forward.module)
        if found is None:
            continue
        shard, module = found
        if wrapped_before(trace, forward, module, "ddp", "fsdp1", where=shard.guards):
            continue
        if _hooks_may_run(trace, forward, module, shard.module):
            continue
        said = module.words()
        yield Finding(
            at=forward,
            message=f"`{said}.forward(…)` runs without the hooks of `fully_shard`: it computes with "
            f"sharded parameters; call `{said}(…)`",
            because=(shard.reason,),
            fix=_call(forward),
        )


def _call(forward: Forward) -> Fix | None:
    """``model.forward(x)`` becomes ``model(x)``."""
    call, model = call_of(forward.at), receiver_of(forward.at)
    if call is None or model is None:
        return None
    edit = Rewrite(forward.at.source, call.func, lambda new: new(model))
    return Fix("call the module", (edit,), "safe")


def _hooks_may_run(trace: Trace, forward: Forward, module: Value, owner: Value) -> bool:
    """Whether the module, or the sharded one around it, may be computing already: then its hooks have run."""
    running = forward.moment.inside
    entered = forward.moment.calls[-len(running) :] if running else ()
    unseen = len(running) - len(
        entered
    )  # the analysis begins in a function: who calls it is not known
    for depth, function in enumerate(running):
        call = entered[depth - unseen] if depth >= unseen else None
        if _is_of(function, module, owner) and _runs_hooks(trace, function, call):
            return True
    return False


def _is_of(function: Function, module: Value, owner: Value) -> bool:
    """Whether a function is a method of the module, or of the sharded one around it."""
    if method_of(function, module):
        return True
    if module is owner:
        return False
    return method_of(function, owner) if isinstance(owner, Instance) else function.home is not None


def _runs_hooks(trace: Trace, method: Function, call: Site | None) -> bool:
    """Whether hooks may run before a method: not when the class is called, or an ordinary method by its name."""
    if method.kind in ("classmethod", "staticmethod"):
        return False
    if call is None:
        return True
    hows = {one.how for one in trace.of(Forward) if one.at.node is call.node}
    with_hooks = {one.method for one in trace.of(Registered)}
    return not hows or None in with_hooks or bool(hows & {"call", *with_hooks})
