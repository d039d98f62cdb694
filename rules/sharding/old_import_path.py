"""FSDP2 or DTensor is imported from a private path that has had a public one since torch 2.6.

## What it does

Finds imports from `torch.distributed._composable.fsdp` and from `torch.distributed._tensor` that torch 2.13 still
answers.

## Why is this bad

These are the private names of older releases. They hand on the same objects, without a warning, so nothing is
wrong today; torch's source says of `_tensor` that the folder is to be removed. The public homes, since torch 2.6,
are `torch.distributed.fsdp` and `torch.distributed.tensor`. What is no longer there at all is FSDP248.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
-from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
+from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model, mp_policy=MixedPrecisionPolicy())
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: a module inside the old package.
- Found: an import inside a function.
- Not found: the old package as a module.

## Fix safety

Safe: the same names are imported from where they are now, by as many statements as there are places. For
`DTensorSpec` and `TensorMeta` that is a private module too: they have no public home. There is no fix when one of the
names is nowhere known.

## Known limits

Imports inside `try` or `if` are how code serves old releases too and are not reported.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/_composable/fsdp/__init__.py`
- `torch/distributed/_tensor/__init__.py`, `torch/distributed/_tensor/placement_types.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Site, Trace, rule

from ._common.old_imports import old_imports, public


@rule(code="FSDP230", group="pedantic")
def check(trace: Trace) -> Iterator[Finding]:
    """Imports from the old places that still work."""
    for old in old_imports(trace):
        if old.removed:
            continue
        homes = " and ".join(f"`{one}`" for one in old.homes or old.likely[:1])
        yield Finding(
            at=Site(old.source, old.statement, old.statement),
            message=f"`{old.module}` is a private path of older releases; import from {homes}",
            fix=public(old),
        )
