"""FSDP2 or DTensor is imported from where it was before torch 2.6.

## What it does

Finds imports from `torch.distributed._composable.fsdp`, of `fully_shard` from `torch.distributed._composable`, and
from `torch.distributed._tensor`.

## Why is this bad

These are private names of older releases. What still answers to them changes: the modules below
`_composable.fsdp` are gone, some names are not exported there any more, and `_composable.fully_shard`, which was
FSDP1 inside, was removed in 2.6: ImportError. The public homes are `torch.distributed.fsdp` and
`torch.distributed.tensor`.

## Example

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model, mp_policy=MixedPrecisionPolicy())
model(torch.randn(4, 8)).sum().backward()
```

## Use instead

```python
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

dist.init_process_group("gloo")
model = nn.Linear(8, 8)
fully_shard(model, mp_policy=MixedPrecisionPolicy())
model(torch.randn(4, 8)).sum().backward()
```

## Fix safety

Safe: the same names are imported from the public module, when it has all of them. The removed
`_composable.fully_shard` has no fix: its arguments were other ones.

## Known limits

Imports inside `try` or `if` are how code serves old releases too and are not reported.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/_composable/fsdp/__init__.py`
- `torch/distributed/_tensor/__init__.py`
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp2lint.api import Finding, Fix, Replace, Site, Source, Trace, exported, rule

from ._imports import imports

_FSDP = "torch.distributed.fsdp"
_TENSOR = "torch.distributed.tensor"
_COMPOSABLE = "torch.distributed._composable"
_HOMES = (
    (f"{_COMPOSABLE}.fsdp", _FSDP),
    ("torch.distributed._tensor.device_mesh", "torch.distributed.device_mesh"),
    ("torch.distributed._tensor", _TENSOR),
)
_FIRST = (2, 6)
"""The first release in which the public modules have the names of the old ones."""


@rule(code="FSDP230", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Imports from the old places."""
    for word in ("_composable", "_tensor"):
        for source, statement, module in imports(trace, word):
            home = _home(module)
            if word not in module or not (home or _is_first(statement, module)):
                continue
            instead = (
                f"import from `{home}`" if home else "use `torch.distributed.fsdp.fully_shard`"
            )
            yield Finding(
                at=Site(source, statement, statement),
                message=f"`{module}` is a private place of older releases; {instead}",
                fix=_public(source, statement, home),
            )


def _home(module: str) -> str:
    """Where the names of a module are now."""
    for old, home in _HOMES:
        if module == old or module.startswith(f"{old}."):
            return home
    return ""


def _is_first(node: cst.ImportFrom, module: str) -> bool:
    """Whether this is the ``fully_shard`` that was FSDP1 inside."""
    named = [] if isinstance(node.names, cst.ImportStar) else [n.name.value for n in node.names]
    return module == f"{_COMPOSABLE}.fully_shard" or (
        module == _COMPOSABLE and "fully_shard" in named
    )


def _public(source: Source, node: cst.ImportFrom, home: str) -> Fix | None:
    """The same names from the public module."""
    if not home or node.module is None or isinstance(node.names, cst.ImportStar):
        return None
    if any(name.name.value not in exported(home, _FIRST) for name in node.names):
        return None
    return Fix(f"import from `{home}`", (Replace(source, node.module, home),), "safe")
