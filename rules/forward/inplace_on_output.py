"""What a sharded module returned is a view, and is changed in place.

## What it does

Finds `h += …`, methods like `h.add_(…)` and functions like `F.relu(h, inplace=True)` on what came out of a module that
`fully_shard` was applied to, where its forward returns a view (`view`, `transpose`, `permute`, `.T`, `squeeze` and their
like).

## Why is this bad

FSDP hangs the hook that prepares the backward on the tensor that comes out. When a view is changed in place,
autograd gives it a new history, and the hook is not part of it. In an inner module the parameters are then not
gathered again for the backward: "setStorage … out of bounds for storage of size 0". At the root no gradient is
reduced and nothing trains, silently. Torch 2.13 warns when a module returns a view.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
 from torch.distributed.fsdp import fully_shard


 class Model(nn.Module):
     def __init__(self):
         super().__init__()
         self.head = nn.Linear(8, 8)

     def forward(self, x):
         return self.head(x).transpose(0, 1)


 dist.init_process_group("gloo")
 model = Model()
 fully_shard(model)
 scores = model(torch.randn(4, 8))
-scores *= 0.5
+scores = scores * 0.5
 scores.sum().backward()
```

## Forms

- Found: a residual in the forward of the model around two blocks.
- Found: functions instead of methods.
- Not found: elements that are set.
- Not found: a view inside a dictionary.

## Fix safety

Safe: `h += x` becomes `h = h + x`, which gives the same numbers. Methods are left for you.

## Known limits

A layer that is given an input of three dimensions may return a view too (`nn.Linear` does); only views that the
forward makes itself are known. One inner module alone is saved by the prefetch of its neighbour, and a root by the hooks of the modules inside; only two
inner ones, or a root without any, are reported.

## References

- https://docs.pytorch.org/docs/stable/generated/torch.Tensor.register_hook.html
- `torch/distributed/fsdp/_fully_shard/_fsdp_state.py` (`_register_pre_backward_hook`)
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Augmented,
    Called,
    Event,
    Finding,
    Fix,
    Literal,
    Part,
    Replace,
    Trace,
    Value,
    options,
    rule,
)

from .._common.evaluation import keeps_no_gradients
from .._common.fixes import path_text
from ._common.outputs import outputs, unprepared

_NAMES = "narrow permute select squeeze t transpose unflatten unsqueeze view view_as".split()
_VIEWS = frozenset(f".{name}()" for name in _NAMES)
_TURNED = (".T", ".mT", ".H", ".mH")
_SWITCHES = (".requires_grad_", ".detach_", ".share_memory_", ".retain_grad_")


@rule(code="FSDP238", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Views that are changed behind FSDP's back."""
    made = {called.result for called in trace.calls(*(f"torch.{name}" for name in _NAMES))}
    views = {
        value: (returned, shard)
        for returned, shard, value in outputs(trace)
        if value in made or _is_view(value)
    }
    found = [
        (event, value)
        for event, changed in (_changes(trace) if views else ())
        for value in options(changed)
        if value in views and not keeps_no_gradients(event)
    ]
    harmed = unprepared(trace, (views[value][1] for _, value in found))
    for event, value in found:
        returned, shard = views[value]
        if shard.module in harmed:
            yield Finding(
                at=event,
                message=f"what `{shard.module.words()}` returned is a view: changing it in place drops the hook "
                "that prepares the backward of its parameters",
                because=((returned, "it computes here"),),
                fix=_out_of_place(event),
            )


def _is_view(value: Value) -> bool:
    if not isinstance(value, Part):
        return False
    return value.key in _TURNED or (value.operation in _VIEWS)


def _changes(trace: Trace) -> Iterator[tuple[Event, Value]]:
    """What changes tensors in place, and which."""
    for augmented in trace.of(Augmented):
        yield augmented, augmented.value
    for called in trace.of(Called):
        if called.receiver is not None and called.name.endswith("_") and called.name[-2:] != "__":
            if called.name not in _SWITCHES:
                yield called, called.receiver
        elif called.receiver is None and called.arguments and _works_in_place(called):
            yield called, called.arguments[0]


def _works_in_place(called: Called) -> bool:
    """Whether a function changes its first argument: `torch.relu_(h)`, `F.relu(h, inplace=True)`."""
    if called.name.startswith("torch.nn.functional."):
        inplace = called.keywords.get("inplace")
        return called.name.endswith("_") or (isinstance(inplace, Literal) and bool(inplace.value))
    return called.name.startswith("torch.") and called.name.endswith("_")


def _out_of_place(event: Event) -> Fix | None:
    """``h = h + (x)`` for ``h += x``."""
    node, source = event.at.node, event.at.source
    if not isinstance(node, cst.AugAssign):
        return None
    name, symbol = path_text(event.at, node.target), source.code(node.operator).strip().rstrip("=")
    value = source.code(node.value)
    if not name or not symbol:
        return None
    simple = isinstance(node.value, cst.Name | cst.Attribute | cst.Call | cst.Integer | cst.Float)
    text = f"{name} = {name} {symbol} {value if simple else f'({value})'}"
    return Fix("make a new tensor", (Replace(source, node, text),), "safe")
