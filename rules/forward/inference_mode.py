"""The first forward of a sharded model runs in inference mode, and the model is trained later.

## What it does

Finds `torch.inference_mode` around the first forward (or `generate`) of a model that `fully_shard` was applied to, when
the same model computes outside of it later and a backward follows.

## Why is this bad

The first forward allocates the buffers into which parameters are gathered. Made in inference mode they are inference
tensors for ever, and the first training step that writes into them raises RuntimeError ("Inplace update to inference
tensor outside InferenceMode is not allowed"). That is the very first one for sharded modules inside a root. What is in
the root's own group stays gathered until the backward, so a root alone raises in the second (measured with 2.13).
`torch.no_grad` has no such effect, and nor has inference mode after a first ordinary forward.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model)
-with torch.inference_mode():
+with torch.no_grad():
     model(torch.randn(4, 8))
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: an evaluation before the training, by a decorator.
- Found: a mode that is chosen, by its name in torch.autograd.
- Not found: a mode that is entered through an `ExitStack`.

## Fix safety

Safe: `torch.no_grad` in place of `torch.inference_mode()`: the values are the same, views and version counters
cost a little.

## Known limits

Silent when the order of the two is not certain (a validation that unseen code may call first) and when the mode is
switched by a value that is not known.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_param.py` (`init_all_gather_outputs`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Backward,
    Finding,
    Fix,
    Forward,
    Instance,
    Literal,
    Part,
    Replace,
    Trace,
    Value,
    name_for,
    rule,
)

from .._common.evaluation import keeps_no_gradients, modes_around
from .._common.shared import sharded
from ._common.computed import computed_before

_MODE = "torch.inference_mode"


@rule(code="FSDP224", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """First forwards that spoil the buffers for training."""
    for forward in trace.of(Forward):
        modes = modes_around(forward, _MODE)
        if (
            forward.how not in ("call", "generate")
            or not modes
            or not all(_is_on(m) for m in modes)
        ):
            continue
        found = sharded(trace, forward, forward.module)
        if found is None:
            continue
        shard, module = found
        if computed_before(trace, forward, module) or not _trained_after(trace, forward):
            continue
        yield Finding(
            at=forward,
            message=f"`{module.words()}` computes for the first time in inference mode: its buffers become "
            "inference tensors and training raises RuntimeError; use `torch.no_grad`",
            because=(shard.reason,),
            fix=_no_grad(modes[-1]),
        )


def _is_on(mode: Value) -> bool:
    """Whether ``inference_mode(…)`` is given nothing, or a constant True."""
    given = [mode.part(f".{name}") for name in ("argument0", "mode")]
    return all(isinstance(v, Part) or (isinstance(v, Literal) and v.value is True) for v in given)


def _trained_after(trace: Trace, forward: Forward) -> bool:
    """Whether the module computes outside of inference mode later, and a backward follows."""
    return any(
        later.module is forward.module
        and not keeps_no_gradients(later)
        and next(trace.after(later, Backward), None) is not None
        for later in trace.after(forward, Forward)
    )


def _no_grad(mode: Value) -> Fix | None:
    """``torch.no_grad`` in place of ``torch.inference_mode``."""
    site = mode.born if isinstance(mode, Instance) else None
    if site is None or not isinstance(site.node, cst.Call) or site.node.args:
        return None
    name = name_for(site.source, site.node, "torch.no_grad")
    edit = Replace(site.source, site.node.func, name.text)
    return Fix("use `torch.no_grad`", (edit, *name.edits), "safe")
