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

Safe: the same names are imported from where they are now, by as many statements as there are places. For
`DTensorSpec` and `TensorMeta` that is a private module too: they have no public home. There is no fix when one of the
names is nowhere known, nor for the removed `_composable.fully_shard`: its arguments were other ones.

## Known limits

Imports inside `try` or `if` are how code serves old releases too and are not reported.

## References

- https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
- `torch/distributed/_composable/fsdp/__init__.py`
- `torch/distributed/_tensor/__init__.py`, `torch/distributed/_tensor/placement_types.py`
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp2lint.api import (
    Edit,
    Finding,
    Fix,
    InsertAfter,
    Layout,
    Replace,
    Site,
    Source,
    Trace,
    exported,
    rule,
)

from ._imports import imports

_FSDP = "torch.distributed.fsdp"
_TENSOR = "torch.distributed.tensor"
_MESH = "torch.distributed.device_mesh"
_COMPOSABLE = "torch.distributed._composable"
_HOMES = (
    (f"{_COMPOSABLE}.fsdp", (_FSDP,)),
    ("torch.distributed._tensor.device_mesh", (_MESH,)),
    ("torch.distributed._tensor", (_TENSOR, _MESH, f"{_TENSOR}.experimental")),
)
"""The old places, and those where their names are now, the likeliest first."""
_SPECS = f"{_TENSOR}._dtensor_spec"
_PRIVATE = {"DTensorSpec": _SPECS, "TensorMeta": _SPECS}
"""Names of ``_tensor.placement_types`` that no public module has; the old one takes them from here."""
_FIRST = (2, 6)
"""The first release in which the public modules have the names of the old ones."""


@rule(code="FSDP230", group="suspicious")
def check(trace: Trace) -> Iterator[Finding]:
    """Imports from the old places."""
    for word in ("_composable", "_tensor"):
        for source, statement, module in imports(trace, word):
            likely = _likely(module)
            if word not in module or not (likely or _is_first(statement, module)):
                continue
            homes = _homes(statement, likely)
            said = " and ".join(f"`{one}`" for one in homes or likely[:1])
            instead = f"import from {said}" if said else f"use `{_FSDP}.fully_shard`"
            yield Finding(
                at=Site(source, statement, statement),
                message=f"`{module}` is a private place of older releases; {instead}",
                fix=_public(source, statement, homes),
            )


def _likely(module: str) -> tuple[str, ...]:
    """Where the names of a module can be now."""
    for old, homes in _HOMES:
        if module == old or module.startswith(f"{old}."):
            return homes
    return ()


def _is_first(node: cst.ImportFrom, module: str) -> bool:
    """Whether this is the ``fully_shard`` that was FSDP1 inside."""
    named = [] if isinstance(node.names, cst.ImportStar) else [n.name.value for n in node.names]
    return module == f"{_COMPOSABLE}.fully_shard" or (
        module == _COMPOSABLE and "fully_shard" in named
    )


def _homes(node: cst.ImportFrom, likely: Sequence[str]) -> dict[str, list[cst.ImportAlias]]:
    """The imported names by the modules where they are now; nothing when one of them is nowhere known."""
    found: dict[str, list[cst.ImportAlias]] = {}
    for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
        name = str(alias.name.value)
        home = next((one for one in likely if name in exported(one, _FIRST)), None)
        home = home or (_PRIVATE.get(name) if _TENSOR in likely else None)
        if home is None:
            return {}
        found.setdefault(home, []).append(alias)
    return found


def _public(
    source: Source, node: cst.ImportFrom, homes: dict[str, list[cst.ImportAlias]]
) -> Fix | None:
    """The same names from where they are now."""
    if not homes or node.module is None:
        return None
    title = f"import from {' and '.join(f'`{one}`' for one in homes)}"
    if len(homes) == 1:
        return Fix(title, (Replace(source, node.module, next(iter(homes))),), "safe")
    if "#" in source.text[slice(*Layout.of(source).span(node))]:
        return None  # a comment says something of one of the names
    first, *more = (_statement(home, aliases) for home, aliases in homes.items())
    edits: list[Edit] = [Replace(source, node, first)]
    edits += (InsertAfter(source, node, one) for one in more)
    return Fix(title, tuple(edits), "safe")


def _statement(home: str, aliases: Sequence[cst.ImportAlias]) -> str:
    names = (
        f"{one.evaluated_name} as {one.evaluated_alias}" if one.asname else one.evaluated_name
        for one in aliases
    )
    return f"from {home} import {', '.join(names)}"
