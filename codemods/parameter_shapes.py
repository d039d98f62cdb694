"""Tests of the shape of FSDP1's flat parameters are left for manual migration.

## What it does

Points out where a script chooses among the parameters of a model that FSDP1 wraps by `ndim`, `dim()`, `shape` or
`numel()`: the weight decay of matrices only, a limit on size.

## Why

FSDP1's parameters were flat, and on each rank a part: all had one dimension, so that `p.ndim >= 2` chose none. Those
of FSDP2 have their own shape and size. The same test now chooses what its author meant, and training changes.

## Example

```diff
 import torch
 from torch import nn
 from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

 model = FSDP(nn.Linear(8, 8), use_orig_params=True)
 decayed = [p for p in model.parameters() if p.ndim >= 2]
 others = [p for p in model.parameters() if p.ndim < 2]
 optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}])
```

## What it leaves

All of it: to keep what FSDP1 did would be to keep a mistake. Numbers that are only added up (`sum(p.numel() …)`)
stay too; the ledger says that they count the whole model now.

## References

- `torch/distributed/fsdp/_flat_param.py` (`_use_sharded_views`)
- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import (
    Account,
    Called,
    Layout,
    Left,
    Program,
    Source,
    Step,
    codemod,
    options,
    walk,
    wrapper,
)

WHY = (
    "FSDP1's parameters are flat, so that this comes out the same for all; FSDP2's have their shape"
)
COUNTED = "counts whole parameters now; FSDP1 counted what this rank holds of them"
TODO = "parameters have their own shape now: check what this test chooses"
_TAKEN = (".parameters", ".named_parameters")
_SHAPE = frozenset({"ndim", "dim", "shape", "numel", "size"})
_Loop = cst.For | cst.CompFor


@codemod()
def rewrite(program: Program) -> Iterator[Step | Left]:
    """Choices among parameters by their shape."""
    for events in program.sites(Called):
        called = events[0][1]
        if called.name not in _TAKEN or not isinstance(called.at.node, cst.Call):
            continue
        owners = {
            wrapper(one) for _, e in events if e.receiver is not None for one in options(e.receiver)
        }
        if "fsdp1" in owners:
            yield from _choices(called.at.source, called.at.node)
            yield from _counts(called.at.source, called.at.node)


def _choices(source: Source, call: cst.Call) -> Iterator[Left]:
    """The tests of shapes in the loop that a call gives parameters to."""
    layout = Layout.of(source)
    loop = next((a for a in layout.ancestors(call) if isinstance(a, _Loop)), None)
    if loop is None or not any(call is one for one in walk(loop.iter)):
        return
    bound = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
    tests = list(loop.ifs) if isinstance(loop, cst.CompFor) else []
    places: list[cst.CSTNode] = [one.test for one in tests]
    if isinstance(loop, cst.For):
        places += (n.test for n in walk(loop.body) if isinstance(n, cst.If | cst.IfExp))
    for place in places:
        if any(_asks_shape(node, bound) for node in walk(place)):
            yield Left(source, place, WHY, TODO)


def _counts(source: Source, call: cst.Call) -> Iterator[Step]:
    """What counts the elements of the parameters that a call gives to a loop."""
    loop = next((a for a in Layout.of(source).ancestors(call) if isinstance(a, _Loop)), None)
    if loop is None or not any(call is one for one in walk(loop.iter)):
        return
    bound = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
    inside = Layout.of(source).parents[loop] if isinstance(loop, cst.CompFor) else loop.body
    for node in walk(inside):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            asked = node.func.value
            named = isinstance(asked, cst.Name) and asked.value in bound
            if named and node.func.attr.value in ("numel", "nelement"):
                yield Step((), (Account(source, node, "changed", COUNTED, own=True),))


def _asks_shape(node: cst.CSTNode, bound: set[str]) -> bool:
    return (
        isinstance(node, cst.Attribute)
        and node.attr.value in _SHAPE
        and isinstance(node.value, cst.Name)
        and node.value.value in bound
    )
