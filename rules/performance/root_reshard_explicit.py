"""The root reshards its parameters after the forward, and gathers them twice in each step.

## What it does

Finds `fully_shard(root, reshard_after_forward=True)` for the outermost of several sharded modules, written in
the call or in one dictionary of options that blocks and root share.

## Why is this bad

The backward begins where the forward has ended, with the parameters of the root. Left alone (`None`),
`reshard_after_forward` means `True` for inner modules and `False` for the root, so that those are still there.
`True` frees them and gathers them again at once: one all-gather more in each step, with nothing to hide it
behind. Three groups gather 6 times instead of 5. Up to torch 2.7 the root ignored the switch; scripts that were
tuned then became slower with 2.8.

## Example

```diff
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1))
 fully_shard(model[0], reshard_after_forward=True)
 fully_shard(model[1], reshard_after_forward=True)
-fully_shard(model, reshard_after_forward=True)
+fully_shard(model)
```

## Forms

- Found: one dictionary of options for blocks and root.
- Found: the default of a helper function.
- Not found: the method that sets it afterwards.
- Not found: the default of an option.

## Fix safety

Unsafe: the argument goes, or `None` takes its place beside the shared options. The root's own parameters then
stay gathered between forward and backward, which a run at the edge of its memory may not have room for.

## Known limits

Silent where no parameters of the root's own are found, where the value comes from a configuration, where
`set_reshard_after_forward` is called, and where the model only evaluates. A module that is sharded here and
again inside a larger one elsewhere is taken for a root.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (`reshard_after_forward`)
- https://github.com/pytorch/pytorch/pull/154704
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_lazy_init`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Arguments,
    Backward,
    Edit,
    Finding,
    Fix,
    Forward,
    Literal,
    Trace,
    options,
    rule,
    unwrapped,
)

from .._common.fixes import call_of, once, path_text
from .._common.shared import Shard, leftover, shards, together
from .._common.tensors import has_root_above

_OPTION = "reshard_after_forward"


@rule(code="FSDP501", group="perf", since="2.8")
def check(trace: Trace) -> Iterator[Finding]:
    """Roots that give back what the backward begins with."""
    if any(trace.calls(f".set_{_OPTION}")):
        return
    for shard in shards(trace):
        given = shard.event.options.get(_OPTION)
        if not isinstance(given, Literal) or given.value is not True:
            continue
        inner = _inner(trace, shard)
        if not inner or has_root_above(trace, shard) or _only_evaluates(trace, shard):
            continue
        if not leftover(trace, shard.module, inner):
            continue
        said = shard.module.words()
        yield Finding(
            at=shard.event,
            message=f"`{said}` is the root: with `{_OPTION}=True` its own parameters are freed after the "
            "forward and gathered again at once for the backward",
            because=(
                (inner[0].event, f"`{inner[0].module.words()}`, a part of it, is sharded here"),
            ),
            fix=_left_alone(trace, shard),
        )


def _inner(trace: Trace, shard: Shard) -> list[Shard]:
    """The shardings of parts of a module."""
    return [
        s
        for s in shards(trace)
        if s.module is not shard.module
        and trace.inside(s.module, shard.module)
        and together(s.guards, shard.guards)
    ]


def _only_evaluates(trace: Trace, shard: Shard) -> bool:
    computes = any(
        unwrapped(m) is shard.module for f in trace.of(Forward) for m in options(f.module)
    )
    return computes and not trace.of(Backward)


def _left_alone(trace: Trace, shard: Shard) -> Fix | None:
    call = call_of(shard.event.at)
    if call is None or not once(trace, shard):
        return None
    source = shard.event.at.source
    spread = [a for a in call.args if a.star == "**"]
    arguments = Arguments(source, call)
    if arguments.has(_OPTION):
        edit: Edit = arguments.remove(_OPTION)
    elif len(spread) == 1 and isinstance(spread[0].value, cst.Name):
        name = path_text(shard.event.at, spread[0].value)
        edit = arguments.replace(spread[0], f'{{**{name}, "{_OPTION}": None}}')
    else:
        return None
    note = "the root's parameters stay gathered between forward and backward"
    return Fix("leave the choice for the root to `fully_shard`", (edit,), "unsafe", note)
