"""An import from a private path of FSDP2 that torch no longer has.

## What it does

Finds imports from the modules below `torch.distributed._composable.fsdp` that are gone, of names that
`torch.distributed._composable.fsdp` no longer exports, and of `fully_shard` from `torch.distributed._composable`.

## Why is this bad

The statement raises ImportError (torch 2.13). Of the old package only `fsdp` and `fsdp.fully_shard` are left, with
the names that are public; `_composable.fully_shard` was FSDP1 inside and is gone. The public home is
`torch.distributed.fsdp`.

## Example

```diff
 import torch
 import torch.distributed as dist
 from torch import nn
-from torch.distributed._composable.fsdp._fsdp_api import MixedPrecisionPolicy
-from torch.distributed.fsdp import fully_shard
+from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

 dist.init_process_group("gloo")
 model = nn.Linear(8, 8)
 fully_shard(model, mp_policy=MixedPrecisionPolicy())
 model(torch.randn(4, 8)).sum().backward()
```

## Forms

- Found: the `fully_shard` that was FSDP1 inside.
- Found: an import inside a function.
- Not found: a module that is imported without `from`.
- Not found: a module that is imported by its name.

## Fix safety

Safe: the same names are imported from where they are now. There is no fix when one of the names is nowhere known,
nor for the removed `_composable.fully_shard`: its arguments were other ones.

## Known limits

Imports inside `try` or `if` are how code serves old releases too and are not reported. `import a.b.c` without `from`
is not looked at. Paths that still work are FSDP230.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/_composable/__init__.py`
- `torch/distributed/_composable/fsdp/__init__.py`, `torch/distributed/_composable/fsdp/fully_shard.py`
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp2lint.api import Finding, Site, Trace, rule

from ._common.old_imports import FSDP, old_imports, public


@rule(code="FSDP248", group="correctness")
def check(trace: Trace) -> Iterator[Finding]:
    """Imports that raise."""
    for old in old_imports(trace):
        if not old.removed:
            continue
        homes = " and ".join(f"`{one}`" for one in old.homes)
        instead = f"import from {homes}" if homes else f"use `{FSDP}.fully_shard`"
        yield Finding(
            at=Site(old.source, old.statement, old.statement),
            message=f"`{old.module}` no longer has this: the import raises ImportError; {instead}",
            fix=public(old),
        )
